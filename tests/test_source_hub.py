"""The hub: a local server that answers as the hub does, for repositories at a commit and for buckets."""

import hashlib
from pathlib import Path

import pytest
from files_server import drop_after, serving, status

from rules.errors import SourceError
from rules.sources import hub

COMMIT = "62bf6fb072880905a4c490f0f4f4a6b3c23346ec"
VISION, POLICY = b"vision bytes" * 5000, b"policy bytes" * 100
FILES = {"driving_vision": "v25/pop22/driving_vision.onnx", "driving_policy": "v25/pop22/driving_policy.onnx"}
REPOSITORY = {"repo": "firestar/models", "revision": COMMIT, "files": FILES}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def server(monkeypatch):
    with serving() as one:
        monkeypatch.setenv("HF_ENDPOINT", one.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield one


def put(server, prefix: str, path: str, content: bytes) -> None:
    """A file as the hub serves it: with its commit, and its sha256 as the ETag."""
    place = f"{prefix}/{path}"
    server.files[place] = content
    server.headers[place] = {"ETag": f'"{sha256(content)}"', "X-Repo-Commit": COMMIT}


@pytest.fixture
def repository(server):
    for path, content in zip(FILES.values(), (VISION, POLICY), strict=True):
        put(server, f"/firestar/models/resolve/{COMMIT}", path, content)
    return server


@pytest.fixture
def bucket(server):
    for path, content in zip(FILES.values(), (VISION, POLICY), strict=True):
        put(server, "/buckets/firestar/weights/resolve", path, content)
    return server


def in_bucket(**sha256s: str) -> dict[str, object]:
    digests = {"driving_vision": sha256(VISION), "driving_policy": sha256(POLICY), **sha256s}
    return {"bucket": "firestar/weights", "files": FILES, "sha256": digests}


def fetched(options, tmp_path: Path) -> dict[str, bytes]:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    paths = hub.fetch(options, tmp_path, scratch, cache=tmp_path / "cache")
    assert sorted(scratch.iterdir()) == sorted(paths.values())
    return {role: path.read_bytes() for role, path in paths.items()}


def refusal(options, tmp_path: Path) -> str:
    with pytest.raises(SourceError) as caught:
        fetched(options, tmp_path)
    return str(caught.value)


def test_files_of_a_repository_come_from_its_commit(tmp_path, repository):
    assert fetched(REPOSITORY, tmp_path) == {"driving_vision": VISION, "driving_policy": POLICY}
    asked = [path for _, path, _ in repository.requests if "/resolve/" in path]
    assert {path.split("/")[4] for path in asked} == {COMMIT}


def test_a_data_set_is_named_as_the_hub_names_it(tmp_path, server):
    put(server, f"/datasets/firestar/models/resolve/{COMMIT}", "model.onnx", VISION)
    options = {"repo": "datasets/firestar/models", "revision": COMMIT, "files": {"model": "model.onnx"}}
    assert fetched(options, tmp_path) == {"model": VISION}


def test_the_endpoint_of_the_source_comes_before_that_of_the_environment(tmp_path, repository, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    options = {**REPOSITORY, "endpoint": repository.url}
    assert fetched(options, tmp_path)["driving_policy"] == POLICY


def test_files_of_a_bucket_come_by_their_digests(tmp_path, bucket):
    assert fetched(in_bucket(), tmp_path) == {"driving_vision": VISION, "driving_policy": POLICY}


def test_a_changed_file_of_a_bucket_is_refused_with_both_values(tmp_path, bucket):
    put(bucket, "/buckets/firestar/weights/resolve", FILES["driving_policy"], POLICY + b"!")
    message = refusal(in_bucket(), tmp_path)
    assert sha256(POLICY) in message
    assert sha256(POLICY + b"!") in message
    assert f"firestar/weights/{FILES['driving_policy']}" in message


def test_a_file_of_a_bucket_without_a_digest_is_refused_with_the_line_to_write(tmp_path, bucket):
    options = {**in_bucket(), "sha256": {"driving_vision": sha256(VISION)}}
    assert f'sha256.driving_policy = "{sha256(POLICY)}"' in refusal(options, tmp_path)


def test_a_pin_of_a_repository_is_checked_too(tmp_path, repository):
    assert "expected sha256" in refusal({**REPOSITORY, "sha256": {"driving_vision": "0" * 64}}, tmp_path)


@pytest.mark.parametrize("where", ["repository", "bucket"])
def test_a_broken_download_goes_on_where_it_stopped(tmp_path, request, where):
    server = request.getfixturevalue(where)
    options = REPOSITORY if where == "repository" else in_bucket()
    (place,) = [path for path in server.files if path.endswith(FILES["driving_vision"])]
    large = VISION * 200  # the library keeps what it has got in steps of 10 MiB
    put(server, place.removesuffix(f"/{FILES['driving_vision']}"), FILES["driving_vision"], large)
    server.faults[place] = [drop_after(11_000_000)]
    options = {**options, "sha256": {**options.get("sha256", {}), "driving_vision": sha256(large)}}
    assert fetched(options, tmp_path)["driving_vision"] == large
    got = [headers for method, path, headers in server.requests if (method, path) == ("GET", place)]
    assert [one.get("range") for one in got] == [None, "bytes=10485760-"]


def test_a_redirect_to_where_the_bytes_are_is_followed(tmp_path, bucket):
    place = f"/buckets/firestar/weights/resolve/{FILES['driving_vision']}"
    bucket.files["/cdn"] = bucket.files.pop(place)
    bucket.faults[place] = [status(302, Location=f"{bucket.url}/cdn")]
    assert fetched(in_bucket(), tmp_path)["driving_vision"] == VISION


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("EntryNotFound", "no such file"),
        ("RevisionNotFound", "no such commit"),
        ("RepoNotFound", "no such repository"),
        ("GatedRepo", "its owner must let you in"),
    ],
)
def test_what_the_hub_refuses_is_a_sentence(tmp_path, server, code, told):
    for path in FILES.values():
        server.headers[f"/firestar/models/resolve/{COMMIT}/{path}"] = {"X-Error-Code": code}
    message = refusal(REPOSITORY, tmp_path)
    assert told in message
    assert f"firestar/models@{COMMIT}/v25/pop22/" in message


def test_a_missing_file_of_a_bucket_is_a_sentence(tmp_path, server):
    assert "firestar/weights/v25/pop22/driving_policy.onnx: " in refusal(in_bucket(), tmp_path)


def test_a_hub_that_does_not_answer_is_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "no answer from the hub" in refusal(in_bucket(), tmp_path)


def test_a_login_goes_to_the_hub_and_into_no_error(tmp_path, server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_s3cret")
    message = refusal(in_bucket(), tmp_path)
    sent = [headers.get("authorization") for _, _, headers in server.requests]
    assert "Bearer hf_s3cret" in sent
    assert "hf_s3cret" not in message


def test_the_identity_of_a_bucket_is_its_digests_and_of_a_repository_its_commit():
    moved = {**in_bucket(), "files": {role: f"moved/{path}" for role, path in FILES.items()}}
    assert hub.identity(moved) == hub.identity(in_bucket())
    assert hub.identity(in_bucket(driving_vision="0" * 64)) != hub.identity(in_bucket())
    assert hub.identity({**REPOSITORY, "revision": "0" * 40}) != hub.identity(REPOSITORY)
    assert hub.identity({**REPOSITORY, "endpoint": "http://mirror"}) == hub.identity(REPOSITORY)


# ---- what the hub announces is what has to come


@pytest.mark.parametrize("header", ["X-Linked-ETag", "ETag"])
def test_what_comes_is_what_the_hub_announces(tmp_path, repository, header):
    place = f"/firestar/models/resolve/{COMMIT}/{FILES['driving_vision']}"
    announced = {"ETag": '"x"', header: f'"{sha256(VISION)}"', "X-Repo-Commit": COMMIT}
    repository.headers[place] = {**announced, "X-Linked-Size": str(len(VISION))}
    assert fetched(REPOSITORY, tmp_path)["driving_vision"] == VISION
    (tmp_path / "scratch").rename(tmp_path / "first")
    repository.files[place] = VISION[::-1]
    told = refusal(REPOSITORY, tmp_path)
    assert f"the hub announces sha256 {sha256(VISION)}, and sent {sha256(VISION[::-1])}" in told


def test_a_file_is_as_large_as_the_hub_announces(tmp_path, repository):
    place = f"/firestar/models/resolve/{COMMIT}/{FILES['driving_vision']}"
    repository.headers[place] |= {"X-Linked-Size": "1000"}
    assert "expected 1,000 bytes, got more" in refusal(REPOSITORY, tmp_path)


def test_a_file_that_has_no_room_is_not_asked_for(tmp_path, repository):
    place = f"/firestar/models/resolve/{COMMIT}/{FILES['driving_policy']}"
    repository.headers[place] |= {"X-Linked-Size": str(10**17)}
    assert "100,000,000,000,000,000 bytes are announced" in refusal(REPOSITORY, tmp_path)
    assert [path.stat().st_size for path in (tmp_path / "scratch").iterdir()] == []


def test_another_commit_than_was_asked_for_is_refused(tmp_path, repository):
    place = f"/firestar/models/resolve/{COMMIT}/{FILES['driving_policy']}"
    repository.headers[place] |= {"X-Repo-Commit": "f" * 40}
    assert f"the hub answers for commit {'f' * 40}" in refusal(REPOSITORY, tmp_path)
