"""A mark in every place of every URL that a project can hold: no output and no file of a run repeats it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from files_server import Server, serving
from hypothesis import example, given
from hypothesis import strategies as st
from lfs_server import Fault, LfsServer
from test_source_git import (
    ABSENT,
    BIG,
    MODEL,
    apart,
    fetch,
    head,
    made,
    pointer,
    refusal,
    repo,
    run,
    server,
    split,
)

from rules.errors import SourceError
from rules.url import Url, guarded, hidden, scrubbed, shown

__all__ = ["apart", "fetch", "repo", "server"]

MARK = "s3cretMARK"
# What may hold a secret, with the host in it.
SPELLINGS = (
    "SCHEME://MARK@HOST/a/b.git",
    "SCHEME://MARK:x-oauth-basic@HOST/a/b.git",
    "SCHEME://HOST/a/b.git?token=MARK&b=c",
    "SCHEME://HOST/a/b.git#MARK",
    "SCHEME://ann:pa%2FMARK@HOST/a/b.git",
)
BASE = """
[defaults]
flags = "cpu"
model_size = "512x256"
cameras = ["1928x1208", "1344x760"]
frame_skip = 4
[toolchains.default]
tinygrad = "0.14.0"
[flags.cpu]
DEV = "CPU:X86"
FLOAT16 = 1
IMAGE = 0
NUM_CPU_THREADS = 1
PARALLEL = 0
"""


def model(name: str, source: dict[str, object]) -> str:
    pairs = ", ".join(f"{key} = {toml(value)}" for key, value in source.items())
    fields = f'name = "{name}"\nversion = "v0"\nseries = "S"\nreleased = "2026-01-01"\ntype = "generic"\n'
    return f"[models.{name}]\n{fields}source = {{ {pairs} }}\n"


def toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def sources(folder: Path, host: str, lfs: str) -> Iterator[dict[str, object]]:
    """Every kind of source that can hold a URL, with a mark in every place of it."""
    git: dict[str, object] = {"kind": "git", "format": "generic", "paths": {"model": MODEL}}
    pointing = made(folder / "pointing", {MODEL: pointer(b"nowhere")})
    for number, spelling in enumerate(SPELLINGS):
        url = spelling.replace("HOST", host).replace("SCHEME", "http").replace("MARK", MARK)
        yield {**git, "ref": ABSENT, "repository": url}
        yield {**git, "ref": ABSENT, "repository": url.replace("http:", "ssh:", 1)}
        clone = made(folder / f"clone{number}", split())
        run(clone, "remote", "add", "origin", url)
        run(clone, "remote", "add", "other", url.replace("http:", "ext::", 1))
        yield {**git, "ref": ABSENT, "repository": clone.name}
        yield {**git, "ref": head(pointing), "repository": pointing.name, "lfs": [url.replace(host, lfs)]}
        configured = made(folder / f"configured{number}", {MODEL: pointer(b"nowhere")})
        (configured / ".lfsconfig").write_text(f'[lfs]\n\turl = "{url.replace(host, lfs)}"\n')
        run(configured, "add", "--all")
        run(configured, "commit", "--quiet", "--message=x")
        yield {**git, "ref": head(configured), "repository": configured.name}
        pin = {"sha256": "0" * 64, "size": 3, "format": "generic"}
        yield {"kind": "archive", "url": url, **pin}
        yield {"kind": "archive", "url": url.replace("http:", "file:", 1), **pin}
        hub = {"repo": "a/b", "revision": ABSENT, "files": {"model": "m.onnx"}}
        if "?" not in url and "#" not in url:
            yield {"kind": "hub", **hub, "endpoint": url}
    for scp in (f"{MARK}@127.0.0.1:x.git", f"fd::{MARK}/x", f"ext::sh -c {MARK}"):
        yield {**git, "ref": ABSENT, "repository": scp}


def said(folder: Path, *words: str, **env: str) -> str:
    """What a command prints, on both streams."""
    done = subprocess.run(
        [sys.executable, "-m", "doit", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )
    return done.stdout + done.stderr


@pytest.fixture
def files() -> Iterator[Server]:
    with serving() as one:
        yield one


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "dodo.py").write_text(Path(__file__).parent.parent.joinpath("dodo.py").read_text())
    (tmp_path / "temp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    return folder


def repeated(tmp_path: Path, *, but: str) -> list[str]:
    """Files that hold the mark, other than those that are ours to write it into."""
    found = []
    for path in sorted(tmp_path.rglob("*")):
        ours = path.name in ("models.toml", "config", ".lfsconfig") and but in str(path)
        if path.is_file() and not path.is_symlink() and not ours and MARK.encode() in path.read_bytes():
            found.append(str(path))
    return found


def test_no_output_and_no_file_repeats_a_secret(
    project: Path, tmp_path: Path, files: Server, server: LfsServer
) -> None:
    host, lfs = files.url.removeprefix("http://"), server.origin.removeprefix("http://")
    text = BASE + f'[store]\nremote = "http://{MARK}:{MARK}@{host}/store?sig={MARK}"\n'
    for number, source in enumerate(sources(project, host, lfs)):
        text += model(f"m{number}", source)
    (project / "models.toml").write_text(text)
    proxy = {"HTTPS_PROXY": f"http://{MARK}:{MARK}@127.0.0.1:9", "HF_TOKEN": f"hf_{MARK}"}
    commands = (
        ["--continue", "onnx"],
        ["outdated"],
        ["outdated", "--json"],
        ["why", "m0"],
        ["list", "--all"],
    )
    for words in commands:
        told = said(project, *words, **proxy)
        assert MARK not in told
        assert "Traceback" not in told
    failures = list((project / "artifacts" / "results").glob("*_failure.json"))
    assert len(failures) > 30
    assert repeated(tmp_path, but="project") == []


REFUSED = (
    *(
        "htps://MARK@h.example/x.zip",
        "ftp://ann:MARK@h.example/x",
        "https:/MARK@h.example/x",
        "MARK@h.example",
    ),
    *("h.example/x.zip?sig=MARK", "https://h.example/a b?sig=MARK", "https://ann:p/MARK@h.example/a b"),
    *("https://" + "a" * 40 + ":MARK@h.example/a b", "https://h.example/a b#MARK"),
)


@pytest.mark.parametrize("url", REFUSED)
def test_what_the_schema_refuses_is_told_without_its_secret(project: Path, tmp_path: Path, url: str) -> None:
    source = {"kind": "archive", "url": url.replace("MARK", MARK), "sha256": "0" * 64, "size": 3}
    (project / "models.toml").write_text(BASE + model("m", {**source, "format": "generic"}))
    told = said(project, "list")
    assert "expected an http, https or file URL" in told
    assert MARK not in told
    assert repeated(tmp_path, but="project") == []


@pytest.mark.parametrize(
    "fault",
    [
        Fault(302, {"Location": f"/gone?sig={MARK}"}),
        Fault(302, {"Location": f"ftp://{MARK}@127.0.0.1/x"}),
        Fault(302, {"Location": f"http://[{MARK}"}),
        Fault(403, {}, json.dumps({"message": f"see https://{MARK}@h/?a={MARK}"}).encode()),
    ],
)
@pytest.mark.parametrize("which", ["batch", "get"])
def test_what_an_lfs_server_says_is_told_without_secrets(fetch, repo, server, fault, which):
    setattr(server, which, [fault] * 9)
    assert MARK not in refusal(fetch, repo, head(repo), "supercombo", lfs=[server.url])


@pytest.mark.parametrize("href", ["ORIGIN/x?sig=MARK", "ftp://MARK@h/x", "MARK", "http://MARK@[/"])
def test_where_an_lfs_server_sends_us_is_told_without_secrets(fetch, repo, server, href):
    oid = server.add(BIG)
    download = {
        "href": href.replace("MARK", MARK).replace("ORIGIN", server.origin),
        "header": {"Authorization": MARK, "X\n": MARK},
    }
    answer = {"objects": [{"oid": oid, "size": len(BIG), "actions": {"download": download}}]}
    server.batch = [Fault(200, {}, json.dumps(answer).encode())] * 9
    assert MARK not in refusal(fetch, repo, head(repo), "supercombo", lfs=[server.url])


# ---- the type


HOSTS = ("h.example", "127.0.0.1:8080", "[::1]:80", "h")
secrets = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=6).map(
    lambda one: f"{MARK}{one}"
)


@given(st.sampled_from(("https", "ssh", "git+ssh", "s3", "x")), st.sampled_from(HOSTS), secrets)
@example("https", "h", f"{MARK}:x/y")
def test_scheme_host_and_path_are_shown_and_nothing_else(scheme: str, host: str, secret: str) -> None:
    scheme = "xx" if scheme == "x" else scheme
    url = Url.of(f"{scheme}://{secret}@{host}/a/b?t={secret}#{secret}")
    assert f"{url}" == str(url) == f"{scheme}://{host}/a/b"
    assert secret not in repr(url)
    assert secret in url.reveal()
    for spelling in (
        url.reveal(),
        f"'{url.reveal()}'",
        f"({url.reveal()}).",
        url.reveal().replace("/", "\\/"),
    ):
        assert secret not in hidden(f"fatal: could not read {spelling}: why")
        assert secret not in url.scrub(f"fatal: {spelling} {secret} why")
    assert secret not in str(SourceError(f"{url.reveal()} failed", fix=f"try {url.reveal()}"))


@given(st.text())
def test_any_text_is_shown_on_one_line(text: str) -> None:
    for told in (shown(text), guarded(text), f"{Url.of(text)}"):
        assert told.isprintable()
    assert isinstance(scrubbed(hidden(text), Url.of(text).secrets), str)
