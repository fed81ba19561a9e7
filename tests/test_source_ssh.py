"""Git LFS objects of a repository behind ssh: a real sshd, git over it, and a real LFS server."""

import hashlib
import json
import logging
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import ssh_server
from conftest import needs
from hypothesis import given
from hypothesis import strategies as st
from lfs_server import Fault, LfsServer
from ssh_server import Sshd

from rules.errors import SourceError
from rules.sources import git, lfs, ssh
from rules.sources.refusal import Refused
from rules.sources.ssh import Address
from rules.url import Url

FOLDER = "selfdrive/modeld/models"
MODELS = {name: random.Random(name).randbytes(50_000) for name in ("driving_vision", "driving_policy")}
SECRET = "Basic aHVzaDpzZWNyZXQ="  # hush:secret
# What a forge installs for its users: it checks, writes down what was asked, and answers.
AUTHENTICATE = """#!/bin/sh
printf '%s\\n' "$*" >> {log}
cat {answer}
exit $(cat {code})
"""


@dataclass
class Forge:
    """A server whose users have git-lfs-authenticate."""

    sshd: Sshd

    @property
    def folder(self) -> Path:
        """Where its keys and answers lie."""
        return self.sshd.folder

    @property
    def command(self) -> str:
        """What runs ssh so that it knows this server and has the key."""
        return self.sshd.command

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.sshd.port

    @property
    def asked(self) -> list[str]:
        """The arguments of each git-lfs-authenticate."""
        log = self.folder / "asked"
        return log.read_text().splitlines() if log.exists() else []

    def answers(self, text: str, code: int = 0) -> None:
        (self.folder / "answer").write_text(text)
        (self.folder / "code").write_text(str(code))

    def url(self, path: Path) -> str:
        return self.sshd.url(path)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forge]:
    folder = tmp_path_factory.mktemp("sshd")
    with ssh_server.running(folder) as server:
        words = {name: folder / name for name in ("answer", "code")} | {"log": folder / "asked"}
        (server.tools / ssh.COMMAND).write_text(AUTHENTICATE.format(**words))
        (server.tools / ssh.COMMAND).chmod(0o755)
        yield Forge(server)


@pytest.fixture
def sshd(running: Forge, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Forge:
    for name in ("asked", "answer", "code"):
        (running.folder / name).unlink(missing_ok=True)
    home = tmp_path / "home"
    home.mkdir()
    people = {"NAME": "A", "EMAIL": "a@example.org"}
    settings = {f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER") for what, text in people.items()}
    settings |= {"HOME": str(home), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    settings |= {"NO_PROXY": "127.0.0.1", "GIT_SSH_COMMAND": running.command}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return running


@pytest.fixture
def server() -> Iterator[LfsServer]:
    """An LFS server that holds the objects, for whoever has the login that sshd's command tells."""
    with LfsServer().running() as running:
        running.login = ("hush", "secret")
        running.signing = True  # downloads need no login of their own
        for content in MODELS.values():
            running.add(content)
        yield running


def granted(server: LfsServer, **more: Any) -> str:
    return json.dumps({"href": server.url, "header": {"Authorization": SECRET}, "expires_in": 3600} | more)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A repository whose models are pointers."""
    folder = tmp_path / "repo with ünicode.git"
    work = tmp_path / "work"
    for name, content in MODELS.items():
        path = work / FOLDER / f"{name}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        oid = hashlib.sha256(content).hexdigest()
        path.write_text(
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {len(content)}\n"
        )
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        subprocess.run([needs("git"), "-C", work, *words], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", work, folder], check=True, capture_output=True)
    subprocess.run(["git", "-C", folder, "config", "uploadpack.allowFilter", "true"], check=True)
    return folder


Fetch = Callable[..., dict[str, bytes]]


@pytest.fixture
def fetch(tmp_path: Path, sshd: Forge, bare: Path) -> Fetch:
    """Fetch the commit's models from a repository into a fresh folder."""
    head = ["git", "-C", bare, "rev-parse", "HEAD"]
    commit = subprocess.run(head, check=True, capture_output=True, text=True).stdout.strip()
    numbers = iter(range(99))

    def call(repository: object) -> dict[str, bytes]:
        scratch = tmp_path / f"scratch{next(numbers)}"
        scratch.mkdir()
        options = {"repository": str(repository), "ref": commit, "format": "split"}
        fetched = git.fetch(options, tmp_path, scratch, cache=tmp_path / "cache")
        return {role: path.read_bytes() for role, path in fetched.items()}

    return call


def refusal(fetch: Fetch, repository: object) -> str:
    with pytest.raises(SourceError) as caught:
        fetch(repository)
    assert "secret" not in str(caught.value)
    assert SECRET not in str(caught.value)
    return str(caught.value)


# ---- it works


def test_objects_come_from_where_the_ssh_server_says(
    fetch: Fetch,
    sshd: Forge,
    server: LfsServer,
    bare: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    sshd.answers(granted(server))
    assert fetch(sshd.url(bare)) == MODELS
    assert sshd.asked == [f"{bare} download"] * 2  # one for each object
    assert all(one.headers["authorization"] == SECRET for one in server.seen if one.method == "POST")
    assert SECRET not in caplog.text
    kept = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [path for path in kept if SECRET.encode() in path.read_bytes()]


def test_a_name_of_scp_s_form_with_the_user_s_own_configuration(
    fetch: Fetch, sshd: Forge, server: LfsServer, bare: Path
) -> None:
    sshd.answers(granted(server))
    assert fetch(f"forge:{bare}") == MODELS
    assert sshd.asked[0] == f"{bare} download"


def test_a_path_in_the_user_s_home_is_as_git_says_it(sshd: Forge) -> None:
    sshd.answers("{}")
    for url in (f"ssh://127.0.0.1:{sshd.port}/~a/b c.git", "forge:~a/b c.git"):
        place = ssh.address(url)
        assert place is not None
        ssh.authenticate(place, ssh.program(lambda: ""))
    assert sshd.asked == ["~a/b c.git download"] * 2


@pytest.mark.parametrize("way", ["GIT_SSH", "core.sshCommand"])
def test_the_ssh_that_git_runs(
    fetch: Fetch,
    sshd: Forge,
    server: LfsServer,
    bare: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    """GIT_SSH is a program and no words; core.sshCommand is that of the user."""
    monkeypatch.delenv("GIT_SSH_COMMAND")
    sshd.answers(granted(server))
    clone = tmp_path / "clone"
    subprocess.run(["git", "init", "-q", clone], check=True)
    subprocess.run(["git", "-C", clone, "remote", "add", "origin", sshd.url(bare)], check=True)
    if way == "GIT_SSH":
        program = tmp_path / "my ssh"
        program.write_text(f'#!/bin/sh\nexec {sshd.command} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("GIT_SSH", str(program))
        monkeypatch.setenv("GIT_SSH_VARIANT", "ssh")
    else:
        config = tmp_path / "gitconfig"
        subprocess.run(["git", "config", "--file", config, "core.sshCommand", sshd.command], check=True)
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    assert fetch(clone) == MODELS
    assert sshd.asked[0] == f"{bare} download"


def test_a_grant_that_has_ended_is_asked_for_again(
    fetch: Fetch, sshd: Forge, server: LfsServer, bare: Path
) -> None:
    server.get.append(Fault(drop_after=1000))
    sshd.answers(granted(server, expires_in=-1))
    assert fetch(sshd.url(bare)) == MODELS
    assert len(sshd.asked) == 3  # two objects, and a download that broke


def test_a_grant_that_holds_serves_all_tries(
    fetch: Fetch, sshd: Forge, server: LfsServer, bare: Path
) -> None:
    server.get.append(Fault(drop_after=1000))
    sshd.answers(granted(server))
    assert fetch(sshd.url(bare)) == MODELS
    assert len(sshd.asked) == 2


# ---- it does not, and says why


FORM = "something else than href and header in JSON"


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        *(("", 0, FORM), ("[]", 0, FORM), ('{"href": 3}', 0, FORM), ("[" * 100_000, 0, FORM)),
        ('{"href": "x", "header": {"Authorization": ["secret"]}}', 0, FORM),
        ('{"href": "nowhere", "header": {}}', 0, "cannot be asked for with HTTP"),
        ('{"href": "URL", "header": {"A": "secret\\n"}}', 0, "cannot be asked for with HTTP"),
        ('{"href": "URL", "header": {"A": "secret"}}', 0, "401, Unauthorized"),
        ("secret", 3, "git-lfs-authenticate over ssh failed (3): without a word"),
    ],
)
def test_an_answer_of_another_form_is_told_and_not_repeated(
    sshd: Forge, server: LfsServer, tmp_path: Path, text: str, code: int, told: str
) -> None:
    sshd.answers(text.replace("URL", server.url), code)
    url = sshd.url(Path("/a/b.git"))
    places = lfs.Places([], [Url.of(url)], tmp_path / "incoming", lambda url: None)
    with pytest.raises(SourceError) as caught:
        lfs.bring(lfs.Pointer("0" * 64, 3), tmp_path / "final", places)
    assert f"ssh://127.0.0.1:{sshd.port}/a/b.git: " in str(caught.value)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_server_without_the_command_is_asked_over_https_too(fetch: Fetch, sshd: Forge, bare: Path) -> None:
    tool = sshd.folder / "bin" / ssh.COMMAND
    tool.rename(tool.with_name("away"))
    try:
        said = refusal(fetch, sshd.url(bare))
    finally:
        tool.with_name("away").rename(tool)
    assert "git-lfs-authenticate over ssh failed (127): " in said
    assert "not found" in said
    assert f"https://127.0.0.1{bare}/info/lfs: no answer" in said


def test_a_login_that_ssh_refuses_is_told(sshd: Forge, bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = sshd.folder / "config"
    (sshd.folder / "other").write_text(config.read_text().replace("/user\n", "/stranger\n"))
    monkeypatch.setenv("GIT_SSH_COMMAND", f"ssh -F {sshd.folder}/other")
    place = ssh.address(sshd.url(bare))
    assert place is not None
    with pytest.raises(Refused, match=r"over ssh failed \(255\): .*Permission denied \(publickey\)"):
        ssh.authenticate(place, ssh.program(lambda: ""))


def test_an_ssh_that_is_not_there_is_told(sshd: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GIT_SSH_COMMAND")
    monkeypatch.setenv("GIT_SSH", "/nonexistent/ssh")
    with pytest.raises(Refused, match=r"/nonexistent/ssh cannot be run \(No such file or directory\)"):
        ssh.authenticate(Address("127.0.0.1", "", "a"), ssh.program(lambda: ""))


@pytest.mark.parametrize(
    "url", ["ssh://-oProxyCommand=touch%20evil/x", "-oProxyCommand=touch evil:x", "ssh://a/%0aevil", "h:-x"]
)
def test_what_ssh_would_take_for_an_option_never_reaches_it(
    url: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_SSH_COMMAND", "touch evil; false")
    place = ssh.address(url)
    assert place is not None
    with pytest.raises(Refused, match="take for something else"):
        ssh.authenticate(place, ssh.program(lambda: ""))
    assert list(tmp_path.iterdir()) == []


# ---- names and answers of any form


@pytest.mark.parametrize(
    ("url", "host", "port", "path"),
    [
        ("ssh://git@example.org/a/b.git", "git@example.org", "", "/a/b.git"),
        ("ssh://example.org:2222/a/b", "example.org", "2222", "/a/b"),
        ("ssh://git@[::1]:2222/a", "git@::1", "2222", "/a"),
        ("ssh://[::1]/a", "::1", "", "/a"),
        ("git+ssh://example.org/~me/a", "example.org", "", "~me/a"),
        ("ssh://example.org/a%20b", "example.org", "", "/a b"),
        ("git@example.org:a/b.git", "git@example.org", "", "a/b.git"),
        ("example.org:/a/b", "example.org", "", "/a/b"),
        ("me@[example.org:2222]:a", "me@example.org", "2222", "a"),
        ("[::1]:a", "::1", "", "a"),
    ],
)
def test_names_of_repositories_behind_ssh(url: str, host: str, port: str, path: str) -> None:
    assert ssh.address(url) == Address(host, port, path)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a",
        "git://example.org/a",
        "file:///a",
        "/a:b",
        "./a:b",
        "a/b:c",
        "ssh://h:x/a",
        "a",
    ],
)
def test_other_names(url: str) -> None:
    assert ssh.address(url) is None


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_none(text: str) -> None:
    found = ssh.address(text)
    assert found is None or isinstance(found, Address)


@given(st.binary(max_size=80) | st.recursive(st.none() | st.integers() | st.floats() | st.text(), st.lists))
def test_any_answer_is_a_grant_or_refused(answer: Any) -> None:
    content = answer if isinstance(answer, bytes) else json.dumps({"href": answer, "header": answer}).encode()
    try:
        assert isinstance(ssh._grant(content, 0.0), ssh.Grant)
    except Refused as refused:
        assert "something else" in str(refused)
