"""Repositories that were handed over: what they say starts no program and gets nobody's login."""

import base64
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import needs
from lfs_server import LfsServer
from test_source_git import (
    ABSENT,
    BIG,
    MODEL,
    POLICY,
    SECOND,
    VISION,
    WANTED,
    apart,
    commit,
    fetch,
    head,
    lfsconfig,
    made,
    pointer,
    refusal,
    repo,
    run,
    server,
    split,
)

__all__ = ["apart", "fetch", "repo", "server"]

Fetch = Callable[..., dict[str, bytes]]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that leaves a mark."""
    path = tmp_path / "evil.sh"
    path.write_text(f"#!/bin/sh\necho \"$0 $@\" >> '{tmp_path}/ran'\nexit 1\n")
    path.chmod(0o755)
    return path


def ran(tmp_path: Path) -> str:
    mark = tmp_path / "ran"
    return mark.read_text() if mark.exists() else ""


PROGRAMS = (
    *("core.sshCommand", "core.fsmonitor", "core.askPass", "core.gitProxy", "core.pager", "core.editor"),
    *(
        "core.alternateRefsCommand",
        "credential.helper",
        "remote.origin.uploadpack",
        "uploadpack.packObjectsHook",
    ),
    *("diff.external", "diff.x.textconv", "filter.lfs.smudge", "filter.lfs.process", "gpg.program"),
    *("remote.origin.receivepack", "sequence.editor", "merge.x.driver", "remote.origin.proxy"),
)


def arm(folder: Path, program: Path, tmp_path: Path) -> None:
    """Every key and hook that could start a program, in the repository and in a file that it includes."""
    hooks = tmp_path / "hooks"
    hooks.mkdir(exist_ok=True)
    for where in (hooks, folder / ".git" / "hooks"):
        where.mkdir(exist_ok=True)
        for name in (
            "reference-transaction",
            "post-checkout",
            "pre-auto-gc",
            "post-merge",
            "fsmonitor-watchman",
        ):
            shutil.copy(program, where / name)
    included = tmp_path / "included"
    for key in PROGRAMS:
        for place in (folder / ".git" / "config", included):
            run(
                tmp_path,
                "config",
                "--file",
                str(place),
                key,
                f"!{program}" if "helper" in key else str(program),
            )
    run(folder, "config", "core.hooksPath", str(hooks))
    run(folder, "config", "include.path", str(included))
    (folder / ".gitattributes").write_text("*.onnx filter=lfs diff=x merge=x\n")


REMOTES = ("ssh://127.0.0.1:9/x.git", "a@127.0.0.1:x", "git://127.0.0.1:9/x", "http://127.0.0.1:9/x.git")


@pytest.mark.parametrize("remote", [*REMOTES, "ext::PROGRAM %S", "FILE"])
def test_a_repository_starts_no_program(fetch: Fetch, program: Path, tmp_path: Path, remote: str) -> None:
    folder = made(tmp_path / "handed over", split())
    ref = head(folder)
    other = made(tmp_path / "other", {MODEL: b"supercombo " * 99})
    wanted = head(other)
    url = {"FILE": other.as_uri()}.get(remote, remote.replace("PROGRAM", str(program)))
    run(folder, "remote", "add", "origin", url)
    for one in (folder, other):
        arm(one, program, tmp_path)
    assert fetch(folder, ref) == WANTED
    if remote == "FILE":
        assert fetch(folder, wanted, "supercombo") == {"driving_supercombo": b"supercombo " * 99}
    else:
        refusal(fetch, folder, wanted, "supercombo")
    assert ran(tmp_path) == ""


def test_a_repository_leads_no_url_elsewhere(fetch: Fetch, program: Path, tmp_path: Path) -> None:
    folder = made(tmp_path / "handed over", split())
    run(folder, "remote", "add", "origin", "https://127.0.0.1:9/x.git")
    run(folder, "config", f"url.ext::{program} .insteadOf", "https://")
    run(folder, "config", "protocol.ext.allow", "always")
    assert "https://127.0.0.1:9/x.git" in refusal(fetch, folder, ABSENT)
    assert ran(tmp_path) == ""


@pytest.mark.parametrize(
    "url", ["fd::0/x", "ext::PROGRAM", "foo::https://127.0.0.1/x", "ftp://127.0.0.1:9/x"]
)
@pytest.mark.parametrize("where", ["catalog", "clone"])
def test_git_is_given_known_protocols_only(
    fetch: Fetch, program: Path, tmp_path: Path, url: str, where: str
) -> None:
    url = url.replace("PROGRAM", str(program))
    named: object = url
    if where == "clone":
        named = made(tmp_path / "clone", split())
        run(named, "remote", "add", "origin", url)
    told = refusal(fetch, named, ABSENT)
    assert "git may not be given it: expected git, http, https, ssh, or a folder" in told
    assert ran(tmp_path) == ""


def test_what_a_user_forbids_git_stays_forbidden(
    fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("git")
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "https")
    assert "transport 'git' not allowed" in refusal(fetch, "git://127.0.0.1:9/x", ABSENT)


# ---- what a repository points to


def test_objects_that_a_repository_borrows_are_its_lenders(fetch: Fetch, tmp_path: Path) -> None:
    lender = made(tmp_path / "lender", split())
    folder = made(tmp_path / "folder")
    (folder / ".git/objects/info/alternates").write_text(f"{lender}/.git/objects\n")
    told = refusal(fetch, folder, head(lender))
    assert f"it shares objects with {lender}/.git, which is read only when the source names it" in told
    assert fetch(lender, head(lender)) == WANTED


@pytest.mark.parametrize("name", [".git/objects/info/alternates", ".git/config", ".git/commondir"])
def test_a_pipe_in_a_repository_is_not_waited_for(fetch: Fetch, tmp_path: Path, name: str) -> None:
    folder = made(tmp_path / "folder", split())
    ref = head(folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert fetch(folder, ref) == WANTED
    assert "could not be fetched" in refusal(fetch, folder, ABSENT)


def test_a_git_file_is_followed_only_to_what_names_it_back(fetch: Fetch, tmp_path: Path) -> None:
    private = made(tmp_path / "private", split())
    run(private, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    folder = tmp_path / "folder"
    folder.mkdir()
    for target in (private / ".git", private / ".git" / "worktrees" / "tree"):
        (folder / ".git").write_text(f"gitdir: {target}\n")
        assert f"its .git names {target}, which does not name it back" in refusal(
            fetch, folder, head(private)
        )
    assert fetch(tmp_path / "tree", head(private)) == WANTED


def loose(folder: Path, oid: str, kind: str, content: bytes) -> None:
    """Put an object under a name that is not its own."""
    path = folder / ".git" / "objects" / oid[:2] / oid[2:]
    path.unlink()
    path.write_bytes(zlib.compress(f"{kind} {len(content)}\0".encode() + content))


@pytest.mark.parametrize("which", ["commit", "tree", "blob", "pointer"])
def test_a_commit_s_name_pins_every_byte(fetch: Fetch, tmp_path: Path, which: str) -> None:
    """Git itself reads an object without asking whether it is what it is called."""
    files = {MODEL: pointer(BIG)} if which == "pointer" else {MODEL: b"right " * 400}
    folder = made(tmp_path / "folder", files)
    ref = head(folder)
    lie = {
        "commit": ("commit", ref),
        "tree": ("tree", run(folder, "rev-parse", f"{ref}:{SECOND}")),
    }.get(which, ("blob", run(folder, "rev-parse", f"{ref}:{MODEL}")))
    commit(folder, {MODEL: pointer(b"wrong") if which == "pointer" else b"wrong " * 400})
    other = {"commit": "HEAD", "tree": f"HEAD:{SECOND}"}.get(which, f"HEAD:{MODEL}")
    kind, oid = lie
    done = subprocess.run(
        [needs("git"), "-C", str(folder), "cat-file", kind, other], check=True, capture_output=True
    )
    loose(folder, oid, kind, done.stdout)
    assert f"expected {kind} {oid}, got " in refusal(fetch, folder, ref, "supercombo")


def test_replaced_objects_stay_as_they_were(fetch: Fetch, tmp_path: Path) -> None:
    folder = made(tmp_path / "folder", split())
    ref = head(folder)
    new = commit(folder, split(vision=b"2", policy=b"2"))
    run(folder, "replace", ref, new)
    assert fetch(folder, ref) == {"driving_vision": VISION, "driving_policy": POLICY}


def test_a_tree_that_grows_in_memory_is_refused(fetch: Fetch, tmp_path: Path) -> None:
    folder = made(tmp_path / "folder", split())
    content = b"".join(b"100644 %08d\0" % number + bytes(20) for number in range(600_000))
    oid = hashlib.sha1(b"tree %d\0" % len(content) + content).hexdigest()
    path = folder / ".git" / "objects" / oid[:2] / oid[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(zlib.compress(b"tree %d\0" % len(content) + content))
    done = run(folder, "commit-tree", oid, "-m", "x")
    assert "expected at most 16,777,216" in refusal(fetch, folder, done)


# ---- who gets a login


def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *settings: tuple[str, str]) -> None:
    """The user's own configuration."""
    config = tmp_path / "gitconfig"
    for key, value in settings:
        run(tmp_path, "config", "--file", str(config), "--add", key, value)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))


def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer to whoever asks, as continuous integration has it."""
    program = tmp_path / "ask"
    program.write_text("#!/bin/sh\necho s3cret\n")
    program.chmod(0o755)
    for name in ("GIT_ASKPASS", "SSH_ASKPASS"):
        monkeypatch.setenv(name, str(program))


GENERAL = "!f() { echo username=ann; echo password=s3cret; }; f"
EXTRA = f"Authorization: Basic {base64.b64encode(b'ann:s3cret').decode()}"


@pytest.mark.parametrize("where", [".lfsconfig", "config", "remote"])
def test_a_server_that_only_the_repository_names_gets_no_login_of_another_host(
    fetch: Fetch, repo: Path, server: LfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    server.login = ("ann", "s3cret")
    ask(tmp_path, monkeypatch)
    helper(tmp_path, monkeypatch, ("credential.helper", GENERAL), ("http.extraHeader", EXTRA))
    ref = head(repo)
    if where == ".lfsconfig":
        ref = commit(repo, lfsconfig(server.url))
    elif where == "config":
        run(repo, "config", "lfs.url", server.url)
    else:
        run(repo, "remote", "add", "origin", f"{server.origin}/repo")
        refusal(fetch, repo, ABSENT)
    told = refusal(fetch, repo, ref, "supercombo")
    assert "401, Unauthorized" in told
    assert "s3cret" not in told
    assert not [one for one in server.seen if "authorization" in one.headers]
    assert fetch(repo, ref, "supercombo", lfs=[server.url]) == {"driving_supercombo": BIG}


def test_a_login_that_is_bound_to_a_host_goes_there(
    fetch: Fetch, repo: Path, server: LfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.login = ("ann", "s3cret")
    helper(tmp_path, monkeypatch, (f"credential.{server.origin}.helper", GENERAL))
    ref = commit(repo, lfsconfig(server.url))
    assert fetch(repo, ref, "supercombo") == {"driving_supercombo": BIG}


def test_a_url_of_a_commit_puts_no_words_into_git_s_mouth(
    fetch: Fetch, repo: Path, server: LfsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line break in it would ask git for the login of another host."""
    server.login = ("ann", "s3cret")
    helper(tmp_path, monkeypatch, ("credential.https://safe.example.helper", GENERAL))
    quoted = f'"{server.url}\\nprotocol=https\\nhost=safe.example\\n"'
    ref = commit(repo, {".lfsconfig": f"[lfs]\n\turl = {quoted}\n".encode()})
    refusal(fetch, repo, ref, "supercombo")
    assert not [one for one in server.seen if "authorization" in one.headers]


# ---- nothing is left behind


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes every connection and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def alive(mark: str) -> list[str]:
    """Commands of processes that have this in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"MARK={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


FETCHING = """
import sys
from pathlib import Path
from rules.sources import git
base = Path(sys.argv[1])
options = {"repository": sys.argv[2], "ref": "0" * 39 + "1", "format": "split"}
git.fetch(options, base, base, cache=base / "cache")
"""


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="this system does not list its processes")
@pytest.mark.parametrize("scheme", ["git", "http"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_git_and_its_children_end_with_us(
    tmp_path: Path, silent: str, scheme: str, how: signal.Signals
) -> None:
    needs("git")
    mark = f"{tmp_path.name}-{os.getpid()}"
    words = [sys.executable, "-c", FETCHING, str(tmp_path), f"{scheme}://{silent}/x.git"]
    starter = subprocess.Popen(words, env={**os.environ, "MARK": mark}, stderr=subprocess.DEVNULL)
    for _ in range(500):
        if any("git fetch" in one or "remote-http" in one for one in alive(mark)):
            break
        time.sleep(0.02)
    assert len(alive(mark)) > 1
    starter.send_signal(how)
    starter.wait()
    for _ in range(500):
        if not alive(mark):
            break
        time.sleep(0.02)
    assert alive(mark) == []
