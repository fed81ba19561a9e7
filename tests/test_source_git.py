"""Models from real git repositories: local, bare, shallow, partial and remote, with and without Git LFS."""

import contextlib
import hashlib
import os
import random
import shutil
import socket
import subprocess
import time
import tracemalloc
from pathlib import Path

import pytest
from conftest import needs
from lfs_server import LfsServer

from rules.errors import SourceError
from rules.sources import git

FIRST, SECOND, THIRD = git.PREFIXES
ABSENT = "0123456789abcdef0123456789abcdef01234567"
VISION, POLICY = b"vision " * 9, b"policy " * 9


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """Git without the configuration of this machine and its user."""
    home = tmp_path / "home"
    home.mkdir()
    people = {"NAME": "A", "EMAIL": "a@example.org"}
    settings = {f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER") for what, text in people.items()}
    settings |= {"HOME": str(home), "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    for name, value in {**settings, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)


def run(folder, *arguments, **env):
    done = subprocess.run(
        [needs("git"), "-C", str(folder), *arguments],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **env},
    )
    return done.stdout.strip()


def made(folder, files=None):
    """A repository with one commit of the given files; returns the folder."""
    folder.mkdir(parents=True)
    run(folder, "init", "--quiet", "--initial-branch=main")
    run(folder, "config", "uploadpack.allowFilter", "true")
    commit(folder, files or {})
    return folder


def commit(folder, files):
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    run(folder, "add", "--all")
    run(folder, "commit", "--quiet", "--allow-empty", "--message=x")
    return head(folder)


def head(folder):
    return run(folder, "rev-parse", "HEAD")


def split(prefix=SECOND, big="", vision=VISION, policy=POLICY):
    return {f"{prefix}/{big}driving_vision.onnx": vision, f"{prefix}/{big}driving_policy.onnx": policy}


@pytest.fixture
def fetch(tmp_path):
    """Fetch a source into a fresh folder; returns contents by role."""
    numbers = iter(range(99))

    def call(repository, ref, form="split", **more):
        scratch = tmp_path / f"scratch{next(numbers)}"
        scratch.mkdir()
        options = {"repository": str(repository), "ref": ref, "format": form, **more}
        fetched = git.fetch(options, tmp_path, scratch, cache=tmp_path / "cache")
        assert sorted(path.name for path in scratch.iterdir()) == sorted(f"{role}.onnx" for role in fetched)
        return {role: path.read_bytes() for role, path in fetched.items()}

    return call


def refusal(fetch, *arguments, **more):
    with pytest.raises(SourceError) as caught:
        fetch(*arguments, **more)
    return str(caught.value)


WANTED = {"driving_vision": VISION, "driving_policy": POLICY}


# ---- which files


@pytest.mark.parametrize("prefix", git.PREFIXES)
def test_a_split_model_is_found_in_each_folder(fetch, tmp_path, prefix):
    repo = made(tmp_path / "repo", split(prefix))
    assert fetch(repo, head(repo)) == WANTED


def test_the_first_folder_that_has_a_set_wins(fetch, tmp_path):
    others = {**split(SECOND, vision=b"2", policy=b"2"), **split(THIRD, vision=b"3", policy=b"3")}
    repo = made(tmp_path / "repo", {**others, **split(FIRST)})
    assert fetch(repo, head(repo)) == WANTED


def test_a_set_is_never_put_together_from_two_folders(fetch, tmp_path):
    halves = {f"{FIRST}/driving_vision.onnx": b"1", f"{SECOND}/driving_policy.onnx": b"2"}
    repo = made(tmp_path / "repo", halves)
    refusal(fetch, repo, head(repo))
    assert fetch(repo, commit(repo, split(THIRD))) == WANTED


@pytest.mark.parametrize(
    "roles",
    [
        ("driving_vision", "driving_on_policy"),
        ("driving_vision", "driving_on_policy", "driving_off_policy"),
        ("driving_vision", "driving_policy", "driving_off_policy"),
        ("driving_vision", "driving_policy", "driving_on_policy", "driving_off_policy"),
    ],
)
def test_a_set_is_what_is_there(fetch, tmp_path, roles):
    files = {f"{SECOND}/{role}.onnx": role.encode() for role in roles}
    repo = made(tmp_path / "repo", {**files, f"{SECOND}/driving_supercombo.onnx": b"another model"})
    assert fetch(repo, head(repo)) == {role: role.encode() for role in roles}


@pytest.mark.parametrize(
    ("form", "role"), [("supercombo", "driving_supercombo"), ("dmonitoring", "dmonitoring_model")]
)
def test_models_of_one_file(fetch, tmp_path, form, role):
    repo = made(tmp_path / "repo", {**split(), f"{SECOND}/{role}.onnx": b"one"})
    assert fetch(repo, head(repo), form) == {role: b"one"}


def test_big_files_are_taken_only_when_asked_for(fetch, tmp_path):
    repo = made(tmp_path / "repo", {**split(), **split(big="big_", vision=b"BIG V", policy=b"BIG P")})
    assert fetch(repo, head(repo)) == WANTED
    assert fetch(repo, head(repo), big=False) == WANTED
    assert fetch(repo, head(repo), big=True) == {"driving_vision": b"BIG V", "driving_policy": b"BIG P"}


@pytest.mark.parametrize(("there", "asked"), [("big_", False), ("", True)])
def test_a_small_model_never_stands_in_for_a_big_one_nor_the_other_way(fetch, tmp_path, there, asked):
    repo = made(tmp_path / "repo", split(big=there))
    text = refusal(fetch, repo, head(repo), big=asked)
    assert f"looked for {'big_' if asked else ''}driving_vision.onnx and" in text
    assert f"found {SECOND}/{there}driving_policy.onnx, {SECOND}/{there}driving_vision.onnx" in text


def test_an_incomplete_set_lists_what_was_looked_for_and_found(fetch, tmp_path):
    repo = made(
        tmp_path / "repo", {f"{SECOND}/driving_off_policy.onnx": b"x", f"{FIRST}/driving_policy.onnx": b"y"}
    )
    text = refusal(fetch, repo, head(repo))
    assert f"{repo} at {head(repo)[:12]}: no complete split set" in text
    assert "looked for driving_vision.onnx and driving_policy.onnx or driving_on_policy.onnx" in text
    assert f"in {FIRST}, {SECOND}, {THIRD}" in text
    assert f"found {FIRST}/driving_policy.onnx, {SECOND}/driving_off_policy.onnx" in text


@pytest.mark.parametrize(
    "name", ["model.onnx", "supercombo.onnx", "._driving_supercombo.onnx", "driving_supercombo.onnx.bak"]
)
def test_the_only_file_there_is_not_chosen(fetch, tmp_path, name):
    repo = made(tmp_path / "repo", {f"{SECOND}/{name}": b"x"})
    assert "no complete supercombo set" in refusal(fetch, repo, head(repo), "supercombo")


def test_an_empty_commit_has_no_model(fetch, tmp_path):
    repo = made(tmp_path / "repo")
    assert "found no ONNX file" in refusal(fetch, repo, head(repo))


def test_a_generic_model_has_its_path_named(fetch, tmp_path):
    repo = made(tmp_path / "repo", {"a b/[ü]*.onnx": b"x", "a b/other.onnx": b"y", ":top.onnx": b"z"})
    assert "does not say which file it is" in refusal(fetch, repo, head(repo), "generic")
    assert fetch(repo, head(repo), "generic", paths={"model": "a b/[ü]*.onnx"}) == {"model": b"x"}
    assert fetch(repo, head(repo), "generic", paths={"model": ":top.onnx"}) == {"model": b"z"}
    text = refusal(fetch, repo, head(repo), "generic", paths={"model": "a b/*.onnx"})
    assert "looked for a b/*.onnx: not in this commit" in text


def test_paths_may_name_the_files_of_any_model(fetch, tmp_path):
    repo = made(
        tmp_path / "repo", {**split(vision=b"no", policy=b"no"), "x/v.onnx": VISION, "x/p.onnx": POLICY}
    )
    assert (
        fetch(repo, head(repo), paths={"driving_vision": "x/v.onnx", "driving_policy": "x/p.onnx"}) == WANTED
    )


def test_a_wrong_path_is_told_what_is_near_it(fetch, tmp_path):
    repo = made(tmp_path / "repo", {**split(), f"{SECOND}/notes.txt": b"x"})
    told = refusal(fetch, repo, head(repo), "generic", paths={"model": f"{SECOND}/driving_visoin.onnx"})
    assert f"{SECOND} has driving_vision.onnx, driving_policy.onnx" in told
    told = refusal(fetch, repo, head(repo), "generic", paths={"model": "selfdrive/model/models/x.onnx"})
    assert "selfdrive has modeld" in told
    told = refusal(fetch, repo, head(repo), "generic", paths={"model": f"{SECOND}/notes.txt/x.onnx"})
    assert f"{SECOND}/notes.txt is a file" in told


def test_a_path_inside_a_submodule_says_so(fetch, tmp_path):
    inner = made(tmp_path / "inner", split())
    outer = made(tmp_path / "outer")
    words = ["-c", "protocol.file.allow=always", "submodule", "add", "--quiet"]
    run(outer, *words, str(inner), "openpilot")
    told = refusal(
        fetch, outer, commit(outer, {}), "generic", paths={"model": f"openpilot/{SECOND}/driving_vision.onnx"}
    )
    assert f"openpilot is a submodule, at commit {head(inner)}: its own repository has {SECOND}" in told


def test_what_is_no_file_is_refused(fetch, tmp_path):
    repo = made(tmp_path / "repo", {"real.onnx": b"x", "folder/file": b"y"})
    (repo / SECOND).mkdir(parents=True)
    (repo / SECOND / "driving_supercombo.onnx").symlink_to("../../../real.onnx")
    text = refusal(fetch, repo, commit(repo, {}), "supercombo")
    assert f"{SECOND}/driving_supercombo.onnx: expected a file, got a symbolic link" in text
    text = refusal(fetch, repo, head(repo), "generic", paths={"model": "folder"})
    assert "got a folder" in text


# ---- the commit


@pytest.mark.parametrize("ref", ["main", "HEAD", "0123456", ABSENT.upper(), "--upload-pack=x", ABSENT + "0"])
def test_only_a_full_commit_pins_a_source(fetch, tmp_path, ref):
    repo = made(tmp_path / "repo", split())
    assert "expected a full commit of 40 hexadecimal digits" in refusal(fetch, repo, ref)


def test_the_commit_decides_and_not_what_is_checked_out(fetch, tmp_path):
    repo = made(tmp_path / "repo", split())
    old = head(repo)
    commit(repo, split(vision=b"new", policy=b"new"))
    (repo / SECOND / "driving_vision.onnx").write_bytes(b"edited")
    assert fetch(repo, old) == WANTED


def test_an_unknown_commit_is_an_error_that_names_it(fetch, tmp_path):
    repo = made(tmp_path / "repo", split())
    text = refusal(fetch, repo, ABSENT)
    assert f"{repo}: commit {ABSENT} is not complete here" in text
    assert "the repository has no remote" in text


def test_a_blob_is_no_commit(fetch, tmp_path):
    repo = made(tmp_path / "repo", split())
    refusal(fetch, repo, run(repo, "rev-parse", f"HEAD:{SECOND}/driving_vision.onnx"))


def test_identity_is_what_decides_the_bytes():
    options = {"ref": ABSENT, "format": "split", "repository": "x", "lfs": ["y"]}
    assert git.identity(options) == {"ref": ABSENT, "format": "split", "big": False}
    assert git.identity({**options, "big": True})["big"] is True
    paths = {"model": "a.onnx"}
    assert git.identity({**options, "paths": paths})["paths"] == paths
    assert git.files(options, Path()) == {}


# ---- repositories on this machine


@pytest.mark.parametrize("name", ["repo", "with space", "ünï-çode 🚗", 'qu"ote', "col:on", "back\\slash"])
def test_a_folder_of_any_name(fetch, tmp_path, name):
    repo = made(tmp_path / name, split())
    assert fetch(repo, head(repo)) == WANTED
    assert fetch(f"./{name}", head(repo)) == WANTED
    assert fetch(repo.as_uri(), head(repo)) == WANTED


def test_a_bare_mirror_a_worktree_and_a_clone_that_shares_objects(fetch, tmp_path):
    repo = made(tmp_path / "repo", split())
    run(tmp_path, "clone", "--quiet", "--mirror", str(repo), "mirror.git")
    run(repo, "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    run(tmp_path, "clone", "--quiet", "--shared", str(repo), "shared")
    run(tmp_path, "init", "--quiet", "super")
    run(
        tmp_path / "super",
        "-c",
        "protocol.file.allow=always",
        "submodule",
        "add",
        "--quiet",
        str(repo),
        "sub",
    )
    for one in ("mirror.git", "tree", "shared", "super/sub"):
        assert fetch(one, head(repo)) == WANTED


@pytest.mark.parametrize("name", ["nowhere", "plain"])
def test_what_is_no_repository_is_refused_even_inside_another(fetch, tmp_path, name):
    repo = made(tmp_path / "repo", split())
    (repo / "plain").mkdir()
    found = "an ordinary folder" if name == "plain" else "no folder"
    text = refusal(fetch, repo / name, head(repo))
    assert f"{repo / name}: expected a git repository, found {found}" in text


def test_a_source_without_a_repository_says_what_to_write(tmp_path):
    with pytest.raises(SourceError, match="names no repository"):
        git.fetch({"ref": ABSENT, "format": "split"}, tmp_path, tmp_path, cache=tmp_path / "cache")


def test_a_hook_of_another_repository_does_not_lead_astray(fetch, tmp_path, monkeypatch):
    repo, other = made(tmp_path / "repo", split()), made(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(other / ".git" / "objects"))
    ref = run(repo, "--git-dir", str(repo / ".git"), "rev-parse", "HEAD")
    assert fetch(repo, ref) == WANTED


def test_no_blob_is_ever_in_memory_as_a_whole(fetch, tmp_path):
    content = random.Random(1).randbytes(12 << 20)
    repo = made(tmp_path / "repo", {f"{SECOND}/driving_supercombo.onnx": content})
    digest, ref = hashlib.sha256(content).digest(), head(repo)
    del content
    scratch = tmp_path / "scratch"
    tracemalloc.start()
    try:
        options = {"repository": str(repo), "ref": ref, "format": "supercombo"}
        fetched = git.fetch(options, tmp_path, scratch, cache=tmp_path / "cache")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 5 << 20
    assert hashlib.sha256(fetched["driving_supercombo"].read_bytes()).digest() == digest


def test_git_missing_is_said(fetch, tmp_path, monkeypatch):
    repo = made(tmp_path / "repo", split())
    ref = head(repo)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "git is not on this machine" in refusal(fetch, repo, ref)


# ---- clones that lack something


def snapshot(folder):
    """Every file of a folder with its content: what must not change."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def history(tmp_path):
    """A repository of three commits, and the oldest one's name."""
    repo = made(tmp_path / "origin repo", split())
    old = head(repo)
    commit(repo, split(vision=b"2", policy=b"2"))
    commit(repo, split(vision=b"3", policy=b"3"))
    return repo, old


LACKING = [
    ["--depth=1"],
    ["--filter=blob:none"],
    ["--filter=tree:0"],
    ["--depth=1", "--filter=blob:none", "--no-checkout"],
]


@pytest.mark.parametrize("how", LACKING, ids=" ".join)
@pytest.mark.parametrize("filters", ["true", "false"])
def test_what_a_clone_lacks_is_fetched_and_the_clone_stays_as_it_is(fetch, history, tmp_path, how, filters):
    repo, old = history
    run(tmp_path, "clone", "--quiet", *how, repo.as_uri(), "clone")
    run(repo, "config", "uploadpack.allowFilter", filters)
    before = snapshot(tmp_path / "clone")
    assert fetch("clone", old) == WANTED
    assert fetch("clone", head(repo)) == {"driving_vision": b"3", "driving_policy": b"3"}
    assert snapshot(tmp_path / "clone") == before


def test_a_shallow_clone_without_its_remote_still_gives_what_it_has(fetch, history, tmp_path):
    repo, old = history
    run(tmp_path, "clone", "--quiet", "--depth=1", repo.as_uri(), "clone")
    repo.rename(tmp_path / "gone")
    assert fetch("clone", head(tmp_path / "clone")) == {"driving_vision": b"3", "driving_policy": b"3"}
    assert f"commit {old} is not complete here and could not be fetched: file://" in refusal(
        fetch, "clone", old
    )


def test_every_remote_of_a_clone_is_asked(fetch, history, tmp_path):
    repo, old = history
    clone = made(tmp_path / "clone")
    run(clone, "remote", "add", "origin", str(tmp_path / "gone"))
    run(clone, "remote", "add", "upstream", f"../{repo.name}")
    assert fetch(clone, old) == WANTED


def test_what_was_fetched_once_is_kept(fetch, history, tmp_path):
    repo, old = history
    run(tmp_path, "clone", "--quiet", "--filter=blob:none", "--no-checkout", repo.as_uri(), "clone")
    assert fetch("clone", old) == WANTED
    repo.rename(tmp_path / "gone")
    assert fetch("clone", old) == WANTED


def test_locks_of_a_killed_git_are_no_obstacle(fetch, history, tmp_path):
    repo, old = history
    run(tmp_path, "clone", "--quiet", "--depth=1", repo.as_uri(), "clone")
    fetch("clone", head(tmp_path / "clone"))
    (ours,) = (tmp_path / "cache" / "git").glob("*.git")
    for name in ("shallow.lock", "config.lock", f"refs/kept/{old}.lock", "refs/kept/heads/main.lock"):
        (ours / name).parent.mkdir(parents=True, exist_ok=True)
        (ours / name).touch()
    assert fetch("clone", old) == WANTED


# ---- remotes


@pytest.fixture
def daemon(tmp_path):
    """The URL under which git's own server serves tmp_path."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    command = [needs("git"), "daemon", "--reuseaddr", "--export-all", "--listen=127.0.0.1", f"--port={port}"]
    serving = subprocess.Popen(
        [*command, f"--base-path={tmp_path}", str(tmp_path)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        wait_for(port)
        yield f"git://127.0.0.1:{port}"
    finally:
        os.killpg(serving.pid, 15)
        serving.wait()


def wait_for(port):
    for _ in range(500):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    pytest.skip("git daemon does not answer on this machine")


@pytest.mark.parametrize("filters", ["true", "false"])
@pytest.mark.parametrize("protocol", ["0", "2"])
def test_a_remote_url_gives_any_commit(fetch, history, tmp_path, daemon, monkeypatch, filters, protocol):
    repo, old = history
    repo.rename(tmp_path / "remote")
    run(tmp_path / "remote", "config", "uploadpack.allowFilter", filters)
    run(tmp_path / "remote", "config", "uploadpack.allowAnySHA1InWant", filters)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "protocol.version")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", protocol)
    assert fetch(f"{daemon}/remote/.git", old) == WANTED
    shutil.rmtree(tmp_path / "remote")
    assert fetch(f"{daemon}/remote/.git", old) == WANTED


def test_only_the_wanted_blobs_cross_the_network(fetch, tmp_path, daemon):
    ballast = random.Random(2).randbytes(1 << 20)
    repo = made(tmp_path / "remote", {**split(), "ballast.bin": ballast})
    assert fetch(f"{daemon}/remote/.git", head(repo)) == WANTED
    assert sum(map(len, snapshot(tmp_path / "cache").values())) < 200_000


def test_a_remote_that_lacks_the_commit_or_is_not_there_is_named(fetch, tmp_path, daemon):
    made(tmp_path / "remote", split())
    assert f"{daemon}/remote/.git: fatal: " in refusal(fetch, f"{daemon}/remote/.git", ABSENT)
    assert f"{daemon}/none: fatal: " in refusal(fetch, f"{daemon}/none", ABSENT)


def test_a_password_in_the_catalog_is_refused_and_not_repeated(fetch):
    text = refusal(fetch, "https://ann:s3cret@127.0.0.1:9/x.git", ABSENT)
    assert "https://127.0.0.1:9/x.git: its URL in models.toml holds a password" in text
    assert "s3cret" not in text


@pytest.mark.parametrize("scheme", ["http", "git", "https", "ssh"])
def test_a_password_in_a_clones_remote_is_not_told(fetch, tmp_path, scheme):
    clone = made(tmp_path / "clone", split())
    run(clone, "remote", "add", "origin", f"{scheme}://ann:s3cret@127.0.0.1:9/x.git")
    text = refusal(fetch, clone, ABSENT)
    assert f"{scheme}://127.0.0.1:9/x.git: " in text
    assert "s3cret" not in text
    assert not any(b"s3cret" in content for content in snapshot(tmp_path / "cache").values())


def test_no_program_is_run_for_a_strange_url(fetch, tmp_path):
    refusal(fetch, f"ext::sh -c touch% {tmp_path}/ran", ABSENT)
    refusal(fetch, f"--upload-pack=touch {tmp_path}/ran", ABSENT)
    assert not (tmp_path / "ran").exists()


# ---- Git LFS by the real git-lfs

BIG = random.Random(3).randbytes(200_000)
OID = hashlib.sha256(BIG).hexdigest()
MODEL = f"{SECOND}/driving_supercombo.onnx"


@pytest.fixture
def pushed(tmp_path):
    """A bare file:// remote with one LFS object, and the clone that pushed it; returns the commit."""
    needs("git-lfs")
    run(tmp_path, "init", "--quiet", "--bare", "--initial-branch=main", "remote.git")
    clone = made(tmp_path / "clone")
    run(clone, "lfs", "install", "--local")
    run(clone, "lfs", "track", "*.onnx")
    ref = commit(clone, {MODEL: BIG})
    run(clone, "remote", "add", "origin", (tmp_path / "remote.git").as_uri())
    run(clone, "push", "--quiet", "origin", "main")
    assert run(clone, "cat-file", "-s", f"HEAD:{MODEL}") != str(len(BIG))
    return ref


@pytest.fixture
def without_git_lfs(tmp_path, monkeypatch):
    """A PATH with git and nothing else."""
    only = tmp_path / "only git"
    only.mkdir()
    (only / "git").symlink_to(str(shutil.which("git")))
    monkeypatch.setenv("PATH", str(only))


def lfs_object(folder):
    return folder / "lfs" / "objects" / OID[:2] / OID[2:4] / OID


def test_lfs_objects_of_a_clone_a_worktree_and_a_clone_that_shares_objects(fetch, pushed, tmp_path, request):
    shutil.rmtree(tmp_path / "remote.git")
    run(tmp_path / "clone", "worktree", "add", "--quiet", "--detach", str(tmp_path / "tree"))
    run(tmp_path, "clone", "--quiet", "--shared", "clone", "shared", GIT_LFS_SKIP_SMUDGE="1")
    assert not lfs_object(tmp_path / "shared" / ".git").exists()
    request.getfixturevalue("without_git_lfs")
    for one in ("clone", "tree", "shared"):
        assert fetch(one, pushed, "supercombo") == {"driving_supercombo": BIG}


@pytest.mark.parametrize("relative", [True, False])
def test_lfs_objects_of_a_storage_of_its_own(fetch, pushed, tmp_path, relative):
    run(tmp_path, "clone", "--quiet", "--no-checkout", "clone", "stored")
    run(tmp_path / "stored", "config", "lfs.storage", "../../shelf" if relative else str(tmp_path / "shelf"))
    run(tmp_path / "stored", "lfs", "install", "--local")
    run(tmp_path / "stored", "lfs", "fetch", (tmp_path / "clone").as_uri(), pushed)
    assert (tmp_path / "shelf" / "objects" / OID[:2] / OID[2:4] / OID).exists()
    for gone in ("remote.git", "clone"):
        shutil.rmtree(tmp_path / gone)
    assert fetch("stored", pushed, "supercombo") == {"driving_supercombo": BIG}


def test_lfs_objects_of_a_file_remote(fetch, pushed, tmp_path, without_git_lfs):
    remote = (tmp_path / "remote.git").as_uri()
    run(tmp_path, "clone", "--quiet", "--no-checkout", remote, "fresh")
    shutil.rmtree(tmp_path / "clone")
    assert fetch("fresh", pushed, "supercombo") == {"driving_supercombo": BIG}
    assert fetch(remote, pushed, "supercombo") == {"driving_supercombo": BIG}
    assert not lfs_object(tmp_path / "fresh" / ".git").exists()


@pytest.mark.parametrize("form", ["repository", "objects", "url"])
def test_lfs_objects_of_a_folder_that_the_source_names(fetch, pushed, tmp_path, form):
    shutil.move(tmp_path / "clone" / ".git" / "lfs", tmp_path / "copy")
    (tmp_path / "remote.git").rename(tmp_path / "moved.git")
    mirror = {"repository": "moved.git", "objects": "copy", "url": (tmp_path / "moved.git").as_uri()}[form]
    assert OID in refusal(fetch, "clone", pushed, "supercombo")
    assert fetch("clone", pushed, "supercombo", lfs=[mirror]) == {"driving_supercombo": BIG}


def test_a_damaged_lfs_object_is_passed_over_and_left_alone(fetch, pushed, tmp_path):
    ours = lfs_object(tmp_path / "clone" / ".git")
    ours.unlink()  # it may share its bytes with the remote's
    ours.write_bytes(BIG[:-1])
    assert fetch("clone", pushed, "supercombo") == {"driving_supercombo": BIG}
    assert ours.read_bytes() == BIG[:-1]
    shutil.rmtree(tmp_path / "remote.git")
    text = refusal(fetch, "clone", pushed, "supercombo")
    assert f"{MODEL}: Git LFS object {OID} (200,000 bytes) did not come" in text
    assert "expected 200,000 bytes, got 199,999" in text


# ---- Git LFS by HTTP


def pointer(content):
    digest = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n".encode()


@pytest.fixture
def server():
    with LfsServer().running() as running:
        running.add(BIG)
        yield running


@pytest.fixture
def other():
    with LfsServer().running() as running:
        running.add(BIG)
        yield running


@pytest.fixture
def repo(tmp_path):
    return made(tmp_path / "repo", {MODEL: pointer(BIG)})


def lfsconfig(url):
    return {".lfsconfig": f"[lfs]\n\turl = {url}\n".encode()}


def test_the_lfs_url_of_the_commit_is_asked(fetch, repo, server, other, without_git_lfs):
    ref = commit(repo, lfsconfig(server.url))
    commit(repo, lfsconfig(other.url))
    assert fetch(repo, ref, "supercombo") == {"driving_supercombo": BIG}
    assert other.seen == []


def test_the_lfs_url_of_git_config_is_asked(fetch, repo, server):
    run(repo, "config", "lfs.url", server.url)
    assert fetch(repo, head(repo), "supercombo") == {"driving_supercombo": BIG}


@pytest.mark.parametrize("where", ["config", ".lfsconfig"])
def test_the_lfs_url_of_a_remote_is_asked(fetch, repo, server, where):
    run(
        repo,
        "config",
        "--file",
        str(repo / ".git/config" if where == "config" else repo / where),
        "remote.origin.lfsurl",
        server.url,
    )
    assert fetch(repo, commit(repo, {}), "supercombo") == {"driving_supercombo": BIG}


@pytest.mark.parametrize("ending", ["", ".git", "/"])
def test_a_remote_without_an_lfs_url_is_asked_at_the_usual_place(fetch, repo, server, ending):
    run(repo, "remote", "add", "origin", f"{server.origin}/repo{ending}")
    assert fetch(repo, head(repo), "supercombo") == {"driving_supercombo": BIG}
    assert server.seen[0].path == "/repo.git/info/lfs/objects/batch"


def test_mirrors_of_the_source_are_asked_first_and_in_order(fetch, repo, server, other):
    ref = commit(repo, lfsconfig(other.url))
    server.objects.clear()
    with LfsServer().running() as second:
        second.add(BIG)
        got = fetch(repo, ref, "supercombo", lfs=[server.url, second.url])
        assert (len(server.seen), len(second.seen), len(other.seen)) == (1, 2, 0)
    assert got == {"driving_supercombo": BIG}


def test_every_place_is_named_when_none_has_the_object(fetch, repo, server, other):
    ref = commit(repo, lfsconfig(other.url))
    server.objects.clear()
    other.objects.clear()
    text = refusal(fetch, repo, ref, "supercombo", lfs=[server.url])
    assert f"{repo} at {ref[:12]}: {MODEL}: Git LFS object {OID} (200,000 bytes) did not come" in text
    assert text.index(f"{server.url}: 404, Not Found") < text.index(f"{other.url}: 404, Not Found")
    assert f"{repo}/.git/lfs/objects: not there" in text


def test_the_lfs_url_of_a_commit_in_a_partial_clone(fetch, repo, server, tmp_path):
    ref = commit(repo, lfsconfig(server.url))
    run(tmp_path, "clone", "--quiet", "--filter=blob:none", "--no-checkout", repo.as_uri(), "clone")
    assert fetch("clone", ref, "supercombo") == {"driving_supercombo": BIG}


def test_a_damaged_pointer_is_refused(fetch, repo):
    ref = commit(repo, {MODEL: pointer(BIG)[:-9]})
    assert f"{MODEL}: a damaged Git LFS pointer" in refusal(fetch, repo, ref, "supercombo")


def test_the_login_comes_from_a_credential_helper(fetch, repo, server, tmp_path, monkeypatch):
    server.login = ("ann", "s3cret")
    ref = commit(repo, lfsconfig(server.url))
    text = refusal(fetch, repo, ref, "supercombo")
    assert "401, Unauthorized: git knows no login" in text
    store = tmp_path / "logins"
    store.write_text(f"{server.origin.replace('http://', 'http://ann:s3cret@')}\n")
    config = tmp_path / "gitconfig"
    run(tmp_path, "config", "--file", str(config), "credential.helper", f"store --file='{store}'")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    assert fetch(repo, ref, "supercombo") == {"driving_supercombo": BIG}
    assert not any(b"s3cret" in content for content in snapshot(tmp_path / "cache").values())


def test_the_login_comes_from_the_environment(fetch, repo, server, tmp_path, monkeypatch):
    server.login = ("ann", "s3cret")
    ask = tmp_path / "ask"
    ask.write_text('#!/bin/sh\ncase "$1" in User*) echo ann;; *) echo s3cret;; esac\n')
    ask.chmod(0o755)
    monkeypatch.setenv("GIT_ASKPASS", str(ask))
    assert fetch(repo, head(repo), "supercombo", lfs=[server.url]) == {"driving_supercombo": BIG}
