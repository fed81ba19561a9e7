"""A real sshd on 127.0.0.1 with one user, one key, and folders of a test."""

import contextlib
import getpass
import os
import shlex
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import needs


@dataclass
class Sshd:
    """What runs, and how to come in. Programs in `tools` are the first that its commands find."""

    folder: Path
    port: int

    @property
    def tools(self) -> Path:
        """The first folder of its commands' PATH."""
        return self.folder / "bin"

    @property
    def command(self) -> str:
        """What runs ssh so that it knows this server and has the key."""
        return f"ssh -F {shlex.quote(str(self.folder / 'config'))}"

    def url(self, path: Path, scheme: str = "ssh") -> str:
        """The URL of a path there."""
        return f"{scheme}://{getpass.getuser()}@127.0.0.1:{self.port}{path}"

    def settle(self, home: Path) -> None:
        """Have a home folder know this server, and hold the key."""
        mine = home / ".ssh"
        mine.mkdir(mode=0o700, parents=True)
        shutil.copy(self.folder / "user", mine / "id_ed25519")
        shutil.copy(self.folder / "known", mine / "known_hosts")


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Sshd]:
    """An sshd until the block ends; skips the test where there is none."""
    program, _, _ = map(needs, ("sshd", "ssh", "ssh-keygen"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        server = Sshd(folder, free.getsockname()[1])
    _write_keys(server)
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # sshd(8): it is for root alone
    with (folder / "log").open("w") as log:
        child = subprocess.Popen([program, "-D", "-e", "-f", folder / "sshd_config"], stderr=log)
    try:
        _wait(server, child)
        yield server
    finally:
        child.terminate()
        child.wait()


def _write_keys(server: Sshd) -> None:
    folder = server.folder
    server.tools.mkdir(parents=True)
    for name in ("host", "user", "stranger"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "authorized").write_text((folder / "user.pub").read_text())
    kind, key, *_ = (folder / "host.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
    (folder / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1\nPort {server.port}\nHostKey {folder}/host\nPidFile none\n"
        f"AuthorizedKeysFile {folder}/authorized\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n"
        f"AcceptEnv GIT_PROTOCOL\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
        f"SetEnv PATH={server.tools}:/usr/local/bin:/usr/bin:/bin\nSubsystem sftp internal-sftp\n"
    )
    (folder / "config").write_text(
        f"Host forge\n  HostName 127.0.0.1\n  Port {server.port}\n"
        f"Host *\n  User {getpass.getuser()}\n  IdentityFile {folder}/user\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {folder}/known\n  GlobalKnownHostsFile /dev/null\n"
        f"  StrictHostKeyChecking yes\n  BatchMode yes\n"
    )


def _wait(server: Sshd, child: "subprocess.Popen[bytes]") -> None:
    for _ in range(100):
        if child.poll() is not None:
            break
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port)):
            return
        time.sleep(0.05)
    pytest.skip(f"sshd does not run on this machine: {(server.folder / 'log').read_text()[-300:]}")
