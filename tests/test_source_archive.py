"""Archives: every form, every way to name a member, a pin that holds, and a network that fails."""

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from files_server import drop_after, serving, status
from hypothesis import given, settings
from hypothesis import strategies as st

from rules.errors import SourceError
from rules.sources import archive

VISION, POLICY = b"vision bytes" * 5000, b"policy bytes" * 100


def zipped(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return target.getvalue()


def tarred(members: dict[str, bytes], mode: str = "w") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode=mode) as file:
        for name, content in members.items():
            one = tarfile.TarInfo(name)
            one.size = len(content)
            file.addfile(one, io.BytesIO(content))
    return target.getvalue()


SPLIT = {"models/driving_vision.onnx": VISION, "models/driving_policy.onnx": POLICY, "README": b"hello"}


def pinned(content: bytes, **options: object) -> dict[str, object]:
    return {
        "format": "split",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
        **options,
    }


def fetched(options, base: Path) -> dict[str, bytes]:
    scratch = base / "scratch"
    scratch.mkdir()
    paths = archive.fetch(options, base, scratch, cache=base / "cache")
    assert sorted(scratch.iterdir()) == sorted(paths.values())
    assert all(path == scratch / f"{role}.onnx" for role, path in paths.items())
    return {role: path.read_bytes() for role, path in paths.items()}


def refusal(options, base: Path) -> str:
    with pytest.raises(SourceError) as caught:
        fetched(options, base)
    return str(caught.value)


@pytest.fixture
def server():
    with serving() as one:
        yield one


@pytest.mark.parametrize(
    "content",
    [zipped(SPLIT), *(tarred(SPLIT, mode) for mode in ("w", "w:gz", "w:bz2", "w:xz"))],
    ids=["zip", "tar", "gz", "bz2", "xz"],
)
def test_every_kind_of_archive_gives_its_files_by_their_roles(tmp_path, content):
    (tmp_path / "pop22.archive").write_bytes(content)
    got = fetched(pinned(content, path="pop22.archive"), tmp_path)
    assert got == {"driving_vision": VISION, "driving_policy": POLICY}


def test_one_onnx_file_is_an_archive_of_itself(tmp_path, server):
    server.files["/m/pop22_driving_supercombo.onnx"] = VISION
    options = pinned(VISION, url=f"{server.url}/m/pop22_driving_supercombo.onnx", format="supercombo")
    assert fetched(options, tmp_path) == {"driving_supercombo": VISION}


def test_a_file_url_and_a_path_with_spaces_are_read(tmp_path):
    place = tmp_path / "a läb" / "pop 22.zip"
    place.parent.mkdir()
    place.write_bytes(zipped(SPLIT))
    got = fetched(pinned(zipped(SPLIT), url=place.as_uri()), tmp_path)
    assert got["driving_policy"] == POLICY


def test_a_folder_is_pinned_by_what_sha256sum_prints(tmp_path):
    folder = tmp_path / "onnx"
    for name, content in (SPLIT | {"models/._driving_vision.onnx": b"junk"}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    command = (
        r"find . -name '*.onnx' ! -name '._*' -printf '%P\n' | LC_ALL=C sort | xargs sha256sum | sha256sum"
    )
    told = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True).stdout
    digest = archive.folder_digest(folder)
    assert digest == (told.split()[0], len(VISION) + len(POLICY))
    options = {"path": "onnx", "format": "split", "sha256": digest.sha256, "size": digest.size}
    assert fetched(options, tmp_path) == {"driving_vision": VISION, "driving_policy": POLICY}
    (folder / "models/driving_policy.onnx").write_bytes(POLICY[:-1] + b"!")
    (tmp_path / "again").mkdir()
    with pytest.raises(SourceError, match="expected sha256"):
        archive.fetch(options, tmp_path, tmp_path / "again", cache=tmp_path)


def test_members_name_what_to_take(tmp_path):
    content = zipped({"a/driving_supercombo.onnx": VISION, "b/driving_supercombo.onnx": POLICY})
    (tmp_path / "two.zip").write_bytes(content)
    options = pinned(content, path="two.zip", format="supercombo")
    chosen = {**options, "members": {"driving_supercombo": "b/driving_supercombo.onnx"}}
    assert fetched(chosen, tmp_path) == {"driving_supercombo": POLICY}
    for wrong, told in [
        (options, "both a/driving_supercombo.onnx and b/driving_supercombo.onnx"),
        ({**options, "members": {"driving_supercombo": "c.onnx"}}, "no member c.onnx"),
    ]:
        scratch = tmp_path / told.replace("/", "-")
        scratch.mkdir()
        with pytest.raises(SourceError, match=told):
            archive.fetch(wrong, tmp_path, scratch, cache=tmp_path)


@pytest.mark.parametrize("name", ["big_driving_supercombo.onnx", "pop22_big_driving_supercombo.onnx"])
def test_the_big_variant_is_not_taken_for_being_the_only_one(tmp_path, name):
    content = zipped({name: VISION})
    (tmp_path / "big.zip").write_bytes(content)
    options = pinned(content, path="big.zip", format="supercombo")
    assert f"expected driving_supercombo.onnx, got {name}" in refusal(options, tmp_path)
    (tmp_path / "b").mkdir()
    got = archive.fetch(
        {**options, "members": {"driving_supercombo": name}}, tmp_path, tmp_path / "b", cache=tmp_path
    )
    assert got["driving_supercombo"].read_bytes() == VISION


def test_files_of_another_format_are_left_in_the_archive(tmp_path):
    content = tarred({**SPLIT, "models/dmonitoring_model.onnx": b"dm", "models/other.onnx": b"?"})
    (tmp_path / "all.tar").write_bytes(content)
    assert sorted(fetched(pinned(content, path="all.tar"), tmp_path)) == ["driving_policy", "driving_vision"]


@pytest.mark.parametrize(
    "name", ["../driving_vision.onnx", "/driving_vision.onnx", "a/../../x", "..\\x.onnx"]
)
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_member_that_leads_outside_is_refused_and_nothing_is_written(tmp_path, name, pack):
    content = pack({name: VISION, **SPLIT})
    (tmp_path / "slip").write_bytes(content)
    assert "expected members inside the archive" in refusal(pinned(content, path="slip"), tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*.onnx")) == []


def test_a_link_in_a_tar_is_no_model(tmp_path):
    target = io.BytesIO()
    (tmp_path / "secret").write_bytes(b"secret")
    with tarfile.open(fileobj=target, mode="w") as file:
        one = tarfile.TarInfo("driving_supercombo.onnx")
        one.type, one.linkname = tarfile.SYMTYPE, str(tmp_path / "secret")
        file.addfile(one)
    (tmp_path / "link.tar").write_bytes(target.getvalue())
    options = pinned(target.getvalue(), path="link.tar", format="supercombo")
    assert "got none" in refusal(options, tmp_path)


@pytest.mark.parametrize("content", [zipped(SPLIT), tarred(SPLIT, "w:gz"), tarred(SPLIT, "w:xz"), b"text"])
def test_a_damaged_archive_is_a_sentence(tmp_path, content):
    broken = content[: len(content) * 2 // 3]
    (tmp_path / "broken").write_bytes(broken)
    assert "cannot be unpacked" in refusal(pinned(broken, path="broken"), tmp_path)


def test_a_local_archive_of_other_bytes_is_refused_with_both_values(tmp_path):
    content = zipped(SPLIT)
    (tmp_path / "a.zip").write_bytes(content[:-1] + b"!")
    message = refusal(pinned(content, path="a.zip"), tmp_path)
    assert hashlib.sha256(content).hexdigest() in message
    assert hashlib.sha256(content[:-1] + b"!").hexdigest() in message


def test_a_missing_archive_is_a_sentence(tmp_path):
    assert "No such file" in refusal(pinned(b"", path="none.zip"), tmp_path)


def test_a_broken_download_goes_on_where_it_stopped(tmp_path, server):
    content = tarred({**SPLIT, "noise": os.urandom(3_000_000)})
    server.files["/m.tar"] = content
    server.faults["/m.tar"] = [drop_after(1_500_000), drop_after(700_000)]
    got = fetched(pinned(content, url=f"{server.url}/m.tar"), tmp_path)
    assert got == {"driving_vision": VISION, "driving_policy": POLICY}
    ranges = [headers.get("range") for _, _, headers in server.requests]
    assert ranges[0] is None
    assert ranges[1:] == ["bytes=1500000-", "bytes=2200000-"]


def test_a_killed_run_leaves_what_the_next_goes_on_with(tmp_path, server):
    content = zipped(SPLIT)
    options = pinned(content, url=f"{server.url}/m.zip")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / f"{options['sha256']}.partial").write_bytes(content[:200])
    server.files["/m.zip"] = content
    assert fetched(options, tmp_path)["driving_vision"] == VISION
    assert [headers.get("range") for _, _, headers in server.requests] == ["bytes=200-"]
    assert list(cache.glob("*.partial")) == []


def test_two_models_of_one_source_may_be_fetched_at_once(tmp_path, server):
    content = zipped(SPLIT)
    server.files["/m.zip"] = content
    server.faults["/m.zip"] = [drop_after(100)]
    options = pinned(content, url=f"{server.url}/m.zip")
    scratches = [tmp_path / name for name in "abcd"]
    for scratch in scratches:
        scratch.mkdir()
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda to: archive.fetch(options, tmp_path, to, cache=tmp_path / "c"), scratches))
    assert [one["driving_vision"].read_bytes() for one in got] == [VISION] * 4


def test_a_server_that_ignores_ranges_is_read_from_the_start(tmp_path, server):
    content = zipped(SPLIT)
    server.files["/m.zip"] = content

    def whole(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(content)))
        handler.end_headers()
        handler.wfile.write(content)

    server.faults["/m.zip"] = [drop_after(100), whole]
    assert fetched(pinned(content, url=f"{server.url}/m.zip"), tmp_path)["driving_vision"] == VISION


def test_a_file_that_changed_between_two_halves_is_fetched_anew(tmp_path, server):
    old, new = zipped({"first": b"HELLO", **SPLIT}), zipped({"first": b"hello", **SPLIT})
    server.files["/m.zip"] = old

    def drop_and_change(handler):
        drop_after(len(old) // 2)(handler)
        server.files["/m.zip"] = new

    server.faults["/m.zip"] = [drop_and_change]
    assert fetched(pinned(new, url=f"{server.url}/m.zip"), tmp_path)["driving_vision"] == VISION
    assert server.requests[-1][2].get("range") is None


def test_a_server_that_is_busy_is_asked_again_when_it_says(tmp_path, server):
    content = zipped(SPLIT)
    server.files["/m.zip"] = content
    server.faults["/m.zip"] = [status(429, Retry_After="0"), status(503, Retry_After="0")]
    assert fetched(pinned(content, url=f"{server.url}/m.zip"), tmp_path)["driving_vision"] == VISION
    assert len(server.requests) == 3


def test_a_server_that_stays_busy_is_given_up(tmp_path, server):
    server.files["/m.zip"] = b""
    server.faults["/m.zip"] = [status(503, Retry_After="0")] * 9
    message = refusal(pinned(zipped(SPLIT), url=f"{server.url}/m.zip"), tmp_path)
    assert "gave up after 5 attempts: HTTP 503" in message
    assert len(server.requests) == 5


def test_a_redirect_is_followed(tmp_path, server):
    content = zipped(SPLIT)
    server.files["/real.zip"] = content
    server.faults["/m.zip"] = [status(302, Location="/real.zip")]
    assert fetched(pinned(content, url=f"{server.url}/m.zip"), tmp_path)["driving_vision"] == VISION


@pytest.mark.parametrize(("code", "word"), [(404, "url"), (403, "login"), (401, "login"), (410, "url")])
def test_a_refusal_is_not_asked_again_and_shows_no_secret(tmp_path, server, code, word):
    server.faults["/m.zip"] = [status(code)] * 2
    host = server.url.removeprefix("http://")
    message = refusal(pinned(b"x", url=f"http://me:s3cret@{host}/m.zip?token=t0ken"), tmp_path)
    assert f"HTTP {code}" in message
    assert word in message
    assert "s3cret" not in message
    assert "t0ken" not in message
    assert len(server.requests) == 1


@pytest.mark.parametrize("change", [lambda c: c[:-7], lambda c: c + b"more", lambda c: c[:-1] + b"!"])
def test_short_long_and_corrupt_downloads_are_refused(tmp_path, server, change):
    content = zipped(SPLIT)
    server.files["/m.zip"] = change(content)
    message = refusal(pinned(content, url=f"{server.url}/m.zip"), tmp_path)
    assert "expected" in message
    assert "got" in message
    assert list(tmp_path.rglob("*.onnx")) == []


def test_the_place_is_no_part_of_the_identity_and_the_bytes_are():
    one = {"url": "https://a.example/x.zip", "sha256": "0" * 64, "size": 1, "format": "split"}
    other = {"path": "x.zip", "sha256": "0" * 64, "size": 1, "format": "split"}
    assert archive.identity(one) == archive.identity(other)
    assert archive.identity(one) != archive.identity({**one, "sha256": "1" * 64})
    assert archive.identity(one) != archive.identity({**one, "members": {"driving_vision": "v.onnx"}})


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z]{1,5}(/[a-z]{1,5}){0,2}\.onnx", fullmatch=True),
        st.binary(max_size=300),
        max_size=6,
    ),
    st.sampled_from([zipped, tarred]),
)
def test_any_member_comes_out_as_it_went_in(tmp_path_factory, members, pack):
    base = tmp_path_factory.mktemp("any")
    members = {**members, "model.onnx": b"model"}
    content = pack(members)
    (base / "a").write_bytes(content)
    for name in members:
        scratch = base / f"scratch-{name.replace('/', '-')}"
        scratch.mkdir()
        options = pinned(content, path="a", format="generic", members={"model": name})
        assert (
            archive.fetch(options, base, scratch, cache=base / "cache")["model"].read_bytes() == members[name]
        )


# ---- what is declared, and what it grows to


def test_a_header_that_grows_in_memory_is_refused(tmp_path):
    size = 1 << 28
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    content = gzip.compress(header.tobuf() + bytes(size) + tarred({"model.onnx": b"x"}), 1)
    (tmp_path / "a.tar.gz").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match="cannot be unpacked"):
            fetched(pinned(content, path="a.tar.gz", format="generic"), tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_member_has_the_size_that_is_declared(tmp_path):
    content = zipped({"model.onnx": b"x" * 99})
    at = content.index(b"PK\x01\x02") + 24  # its size in the archive's own listing
    content = content[:at] + (98).to_bytes(4, "little") + content[at + 4 :]
    for number, one in enumerate((content, content[:at] + b"\x64" + content[at + 1 :])):
        base = tmp_path / str(number)
        base.mkdir()
        (base / "a.zip").write_bytes(one)
        with pytest.raises(SourceError, match="cannot be unpacked"):
            fetched(pinned(one, path="a.zip", format="generic"), base)


def test_a_tar_that_declares_more_than_any_model_has_is_refused(tmp_path):
    header = tarfile.TarInfo("model.onnx")
    header.size = 10**17
    content = header.tobuf(tarfile.GNU_FORMAT) + bytes(1024)
    (tmp_path / "a.tar").write_bytes(content)
    with pytest.raises(SourceError, match="cannot be unpacked"):
        fetched(pinned(content, path="a.tar", format="generic"), tmp_path)


def test_an_archive_that_has_no_room_is_not_asked_for(tmp_path):
    with serving() as server:
        options = {**pinned(b"x", url=f"{server.url}/a.zip?sig=s3cret"), "size": 10**17}
        with pytest.raises(SourceError, match="100,000,000,000,000,000 bytes are announced") as caught:
            fetched(options, tmp_path)
        assert server.requests == []
    assert "s3cret" not in str(caught.value)
