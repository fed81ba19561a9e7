"""Git LFS objects from folders and from a real server on this machine that breaks in every way we know."""

import email.utils
import gzip
import hashlib
import json
import logging
import random
import re
import subprocess
import threading
import time
import tracemalloc
import zlib

import pytest
from conftest import needs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lfs_server import Fault, LfsServer, Seen

from rules.errors import SourceError
from rules.sources import lfs
from rules.sources.lfs import Login, Patience, Places, Pointer
from rules.url import Url

CONTENT = random.Random(5).randbytes(300_000)
OID = hashlib.sha256(CONTENT).hexdigest()
POINTER = Pointer(OID, len(CONTENT))
BRISK = Patience(attempts=3, first_s=0.001, longest_s=2)


@pytest.fixture(autouse=True)
def direct(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def server():
    with LfsServer().running() as running:
        running.add(CONTENT)
        yield running


@pytest.fixture
def other():
    with LfsServer().running() as running:
        running.add(CONTENT)
        yield running


@pytest.fixture
def bring(tmp_path):
    """Bring the object to tmp_path/model.onnx from the given URLs and folders."""

    def call(*urls, folders=(), login=lambda url: None, pointer=POINTER, patience=BRISK):
        final = tmp_path / "model.onnx"
        lfs.bring(
            pointer, final, Places(folders, [*map(Url.of, urls)], tmp_path / "incoming", login), patience
        )
        return final.read_bytes()

    return call


def refusal(bring, *urls, **more):
    with pytest.raises(SourceError) as caught:
        bring(*urls, **more)
    return str(caught.value)


def stored(folder, content, oid=OID):
    path = folder / oid[:2] / oid[2:4] / oid
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    return folder


def left_in(tmp_path):
    """Names that a caller could take for a result or that were left half made."""
    return sorted(path.name for path in tmp_path.iterdir() if path.is_file())


# ---- pointers


@given(st.binary(min_size=32, max_size=32), st.integers(0, 10**17))
def test_a_pointer_is_read_back(oid, size):
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid.hex()}\nsize {size}\n"
    assert lfs.parse(text.encode()) == Pointer(oid.hex(), size)


@given(st.binary(max_size=200).filter(lambda content: b"version" not in content))
def test_any_other_content_is_no_pointer(content):
    assert lfs.parse(content) is None


@pytest.mark.parametrize(
    "rest",
    [
        "",
        f"oid sha256:{OID}\n",
        f"oid sha256:{OID}\nsize -1\n",
        f"oid sha256:{OID[:-1]}\nsize 3\n",
        f"oid sha1:{OID}\nsize 3\n",
        f"oid sha256:{OID.upper()}\nsize 3\n",
    ],
)
def test_a_damaged_pointer_is_refused(rest):
    with pytest.raises(SourceError, match="damaged Git LFS pointer"):
        lfs.parse(b"version https://git-lfs.github.com/spec/v1\n" + rest.encode())


VERSION = "version https://git-lfs.github.com/spec/v1"
OTHER = "f" * 64
LINES = [
    VERSION,
    f"oid sha256:{OID}",
    f"oid sha256:{OTHER}",
    *("size 12", "size 3", "size +4", "size 1_0", "size  7", "size", "size 1 2", "ext-0-foo sha256:" + OTHER),
    *(
        "<<<<<<< HEAD",
        "=======",
        ">>>>>>> other",
        "",
        " ",
        "x-note hello",
        "version https://hawser.github.com/spec/v1",
    ),
    "version https://git-lfs.github.com/spec/v2",
]


@pytest.fixture(scope="module")
def git_lfs_takes(tmp_path_factory):
    """Whether git-lfs itself takes some bytes as a pointer."""
    needs("git-lfs")
    file = tmp_path_factory.mktemp("witness") / "pointer"
    command = ["git", "lfs", "pointer", "--check", "--file", str(file)]

    def takes(content):
        file.write_bytes(content)
        return subprocess.run(command, capture_output=True, cwd=file.parent).returncode == 0

    return takes


@settings(max_examples=120, deadline=None)
@given(
    lines=st.lists(st.sampled_from(LINES), max_size=5),
    ending=st.sampled_from(["\n", "\r\n"]),
    last=st.booleans(),
)
@example(lines=[VERSION, f"oid sha256:{OID}", "size 12"], ending="\n", last=True)
@example(lines=[VERSION, f"oid sha256:{OID}", "size 12"], ending="\r\n", last=False)
@example(lines=[VERSION, "", f"oid sha256:{OID}", "size +4"], ending="\n", last=True)
@example(lines=[VERSION, f"oid sha256:{OID}", f"oid sha256:{OTHER}", "size 12"], ending="\n", last=True)
@example(lines=[VERSION, "size 12", f"oid sha256:{OID}"], ending="\n", last=True)
@example(lines=[VERSION, f"oid sha256:{OID}", "size 12", "x-note hello"], ending="\n", last=True)
@example(
    lines=[VERSION, "<<<<<<< HEAD", f"oid sha256:{OID}", "=======", f"oid sha256:{OTHER}", "size 3"],
    ending="\n",
    last=True,
)
def test_what_git_lfs_refuses_is_no_pointer_and_what_it_takes_is(git_lfs_takes, lines, ending, last):
    content = (ending.join(lines) + ending * last).encode()
    try:
        ours = lfs.parse(content)
    except SourceError as error:
        assert re.match(r"a damaged Git LFS pointer: line \d+: expected ", str(error))
        ours = None
    if any(line.startswith("ext-") for line in lines) or not content.strip():
        assert ours is None  # git-lfs asks the extension's program; an empty file is one
        return
    assert (ours is not None) == git_lfs_takes(content)


def test_a_conflict_is_told_by_its_line():
    text = (
        f"{VERSION}\n<<<<<<< HEAD\noid sha256:{OID}\nsize 3\n=======\noid sha256:{OTHER}\nsize 4\n>>>>>>> x\n"
    )
    with pytest.raises(SourceError) as caught:
        lfs.parse(text.encode())
    assert "line 2: expected oid sha256:<64 hex>, got '<<<<<<< HEAD'" in str(caught.value)
    assert "the conflict of two pointers is resolved" in str(caught.value)


def test_a_pointer_of_nothing_is_an_empty_file(tmp_path):
    empty = Pointer(hashlib.sha256().hexdigest(), 0)
    assert lfs.copied(empty, (), tmp_path / "final")
    assert (tmp_path / "final").read_bytes() == b""
    assert not lfs.copied(Pointer(OID, 0), (), tmp_path / "other")


# ---- folders


def test_an_object_is_copied_from_the_first_folder_that_has_it_whole(bring, tmp_path):
    short = stored(tmp_path / "short", CONTENT[:-1])
    wrong = stored(tmp_path / "wrong", CONTENT[:-1] + b"?")
    whole = stored(tmp_path / "whole", CONTENT)
    assert bring(folders=[tmp_path / "none", short, wrong, whole]) == CONTENT
    assert left_in(tmp_path) == ["model.onnx"]


def test_a_folder_that_holds_other_bytes_is_named_with_both_values(bring, tmp_path):
    short = stored(tmp_path / "short", CONTENT[:-1])
    wrong = stored(tmp_path / "wrong", CONTENT[:-1] + b"?")
    text = refusal(bring, folders=[short, wrong])
    assert f"{short}: expected 300,000 bytes, got 299,999" in text
    got = hashlib.sha256(CONTENT[:-1] + b"?").hexdigest()
    assert f"{wrong}: expected sha256 {OID}, got {got}" in text
    assert left_in(tmp_path) == []


def test_copied_says_whether_a_folder_had_it(tmp_path):
    final = tmp_path / "model.onnx"
    assert not lfs.copied(POINTER, [stored(tmp_path / "wrong", b"?" * len(CONTENT))], final)
    assert not final.exists()
    assert lfs.copied(POINTER, [stored(tmp_path / "whole", CONTENT)], final)
    assert final.read_bytes() == CONTENT


# ---- servers


def test_an_object_comes_from_a_server(bring, server, tmp_path):
    assert bring(server.url) == CONTENT
    assert [(one.method, one.path) for one in server.seen] == [
        ("POST", "/repo.git/info/lfs/objects/batch"),
        ("GET", f"/objects/{OID}"),
    ]
    assert json.loads(server.seen[0].body)["objects"] == [{"oid": OID, "size": len(CONTENT)}]
    assert not (tmp_path / "incoming" / f"{OID}.part").exists()


def test_an_empty_object_comes_too(bring, server):
    assert bring(server.url, pointer=Pointer(server.add(b""), 0)) == b""


def test_the_next_server_is_asked_for_what_one_lacks(bring, server, other):
    server.objects.clear()
    assert bring(server.url, other.url) == CONTENT
    assert (server.count("GET"), other.count("GET")) == (0, 1)


def test_the_first_server_wins(bring, server, other):
    assert bring(server.url, other.url) == CONTENT
    assert other.seen == []


def test_404_of_an_object_is_final(bring, server, tmp_path):
    server.objects.clear()
    assert f"{server.url}: 404, Not Found" in refusal(bring, server.url)
    assert len(server.seen) == 1
    assert left_in(tmp_path) == []


def test_404_of_the_batch_api_is_final(bring, server):
    server.batch = [Fault(404, body=b"<html>")]
    assert "404, Not Found" in refusal(bring, server.url)
    assert len(server.seen) == 1


CORRUPT = CONTENT[:1000] + bytes([CONTENT[1000] ^ 1]) + CONTENT[1001:]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(body=CORRUPT), f"expected sha256 {OID}, got {hashlib.sha256(CORRUPT).hexdigest()}"),
        (Fault(body=CONTENT[:-5]), "expected 300,000 bytes, got 299,995"),
        (Fault(body=CONTENT + b"x"), "expected 300,000 bytes, got 300,001"),
        (Fault(body=CONTENT + b"x", unsized=True), "expected 300,000 bytes, got more"),
        (Fault(body=b"<html>please log in</html>"), "expected 300,000 bytes, got 26"),
        (Fault(404, body=b""), "404, Not Found"),
        (Fault(410, body=b""), "410, Gone"),
    ],
)
def test_wrong_bytes_are_refused_and_the_next_server_is_asked(bring, server, other, tmp_path, fault, said):
    server.get = [fault]
    assert f"{server.url}: {said}" in refusal(bring, server.url)
    assert left_in(tmp_path) == []
    server.get = [fault]
    assert bring(server.url, other.url) == CONTENT


def test_a_server_that_always_ends_short_is_given_up(bring, server):
    server.resumes = False
    server.get = [Fault(body=CONTENT[:-5], unsized=True) for _ in range(50)]
    assert "expected 300,000 bytes, got 299,995, after 3 tries" in refusal(bring, server.url)


@pytest.mark.parametrize("says", [0, len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_batch_answer_of_another_size_is_refused(bring, server, says):
    server.says_size = says
    assert f"expected 300,000 bytes, its batch answer says {says:,}" in refusal(bring, server.url)
    assert server.count("GET") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b'{"objects": []}',
        b'{"objects": [7]}',
        b'{"objects": {"oid": 1}}',
        json.dumps({"objects": [{"oid": OID}]}).encode(),
        json.dumps({"objects": [{"oid": OID, "actions": {"download": {"href": 3}}, "size": "x"}]}).encode(),
        json.dumps({"objects": [{"oid": OID, "error": "no"}]}).encode(),
        json.dumps({"objects": [{"oid": OID, "size": float("inf")}]}).encode(),
        b"[" * 100_000,
    ],
)
def test_an_answer_that_is_no_batch_answer_is_refused(bring, server, body):
    server.batch = [Fault(body=body)]
    assert "its batch answer offers no download of this object" in refusal(bring, server.url)


@pytest.mark.parametrize(
    "href", ["file:///etc/hostname", "ftp://127.0.0.1/x", "http://[", "nonsense", "http://a\nb/"]
)
def test_only_http_is_followed(bring, server, href):
    action = {"oid": OID, "size": len(CONTENT), "actions": {"download": {"href": href}}}
    server.batch = [Fault(body=json.dumps({"objects": [action]}).encode())]
    assert "cannot be asked for with HTTP" in refusal(bring, server.url)


# ---- patience


def test_429_is_tried_again_when_the_server_says(bring, server):
    server.batch = [Fault(429, {"Retry-After": "1"}, b"")]
    server.get = [Fault(429, {"Retry-After": "0"}, b"")]
    began = time.monotonic()
    assert bring(server.url) == CONTENT
    # Not a speed: asking before the second is over is what the server forbids.
    assert time.monotonic() - began >= 1
    assert (server.count("POST"), server.count("GET")) == (3, 2)


def test_retry_after_may_be_a_date(bring, server):
    server.batch = [Fault(429, {"Retry-After": email.utils.formatdate(time.time() - 9, usegmt=True)}, b"")]
    assert bring(server.url, patience=Patience(attempts=2, first_s=3600, longest_s=1)) == CONTENT


# Named, since pytest's workers must agree on names, and the date is of the moment.
@pytest.mark.parametrize(
    "text", ["3600", email.utils.formatdate(time.time() + 7200, usegmt=True)], ids=["seconds", "date"]
)
def test_a_server_that_wants_too_long_a_wait_is_left_for_the_next(bring, server, other, text):
    server.batch = [Fault(429, {"Retry-After": text}, b""), Fault(429, {"Retry-After": text}, b"")]
    assert "429, Too Many Requests, and wants" in refusal(bring, server.url)
    assert bring(server.url, other.url) == CONTENT


@pytest.mark.parametrize("code", [408, 500, 502, 503, 509, 599])
def test_a_server_in_trouble_is_tried_again(bring, server, code):
    server.batch = [Fault(code, {"Retry-After": "soon"}, b"")]
    server.get = [Fault(code, body=b"")]
    assert bring(server.url) == CONTENT


def test_trouble_that_lasts_ends_in_an_error(bring, server):
    server.batch = [Fault(503, body=b"") for _ in range(9)]
    assert "503, Service Unavailable, after 3 tries" in refusal(bring, server.url)
    assert server.count("POST") == 3


def test_no_server_at_all_is_said(bring):
    with LfsServer().running() as gone:
        url = gone.url
    assert f"{url}: no answer (ConnectError), after 3 tries" in refusal(bring, url)


# ---- broken downloads


def test_a_broken_download_is_resumed_by_range(bring, server):
    server.get = [Fault(drop_after=100_000), Fault(drop_after=50_000)]
    assert bring(server.url) == CONTENT
    assert server.ranges() == [None, "bytes=100000-", "bytes=150000-"]


def test_progress_sets_the_count_of_tries_back(bring, server):
    server.get = [Fault(drop_after=20_000) for _ in range(12)]
    assert bring(server.url) == CONTENT
    assert server.count("GET") == 13


def test_a_later_run_resumes_what_an_earlier_one_left(bring, server, other):
    server.get = [Fault(drop_after=100_000), *(Fault(503, body=b"") for _ in range(9))]
    refusal(bring, server.url)
    assert bring(other.url) == CONTENT
    assert other.ranges() == ["bytes=100000-"]


def test_a_server_without_ranges_starts_over(bring, server):
    server.resumes = False
    server.get = [Fault(drop_after=100_000)]
    assert bring(server.url) == CONTENT
    assert server.ranges() == [None, "bytes=100000-"]


@pytest.mark.parametrize(
    "fault",
    [
        Fault(416, body=b""),
        Fault(206, {"Content-Range": f"bytes 0-199999/{len(CONTENT)}"}, CONTENT[:200_000]),
        Fault(206, {"Content-Range": "bytes 100000-199999/200000"}, CONTENT[100_000:200_000]),
        Fault(206, {}, CONTENT[100_000:]),
    ],
)
def test_a_wrong_range_starts_over(bring, server, fault):
    server.get = [Fault(drop_after=100_000), fault]
    assert bring(server.url) == CONTENT
    assert server.ranges() == [None, "bytes=100000-", None]


def test_bytes_of_a_bad_server_do_not_spoil_a_good_one(bring, server, other):
    server.get = [Fault(body=CORRUPT, drop_after=100_000), *(Fault(503, body=b"") for _ in range(9))]
    assert bring(server.url, other.url) == CONTENT
    assert other.ranges() == ["bytes=100000-", None]


def test_a_left_over_that_is_too_long_is_thrown_away(bring, server, tmp_path):
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / f"{OID}.part").write_bytes(CONTENT + b"more")
    assert bring(server.url) == CONTENT
    assert server.ranges() == [None]


def test_a_left_over_that_is_whole_needs_no_server(bring, server, tmp_path):
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / f"{OID}.part").write_bytes(CONTENT)
    assert bring(server.url) == CONTENT
    assert server.seen == []


def test_a_batch_answer_that_breaks_off_is_asked_for_again(bring, server):
    server.batch = [Fault(drop_after=20)]
    assert bring(server.url) == CONTENT


def test_a_second_run_waits_for_the_first_and_uses_what_it_left(server, tmp_path):
    places = Places((), [Url.of(server.url)], tmp_path / "incoming", lambda url: None)
    places.incoming.mkdir()
    final = tmp_path / "model.onnx"
    second = threading.Thread(target=lfs.bring, args=(POINTER, final, places, BRISK))
    with lfs.locked(places.incoming / f"{OID}.lock"):
        second.start()
        second.join(0.3)
        (places.incoming / f"{OID}.part").write_bytes(CONTENT)
    second.join()
    assert final.read_bytes() == CONTENT
    assert server.seen == []


# ---- redirects


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_keeps_method_and_body(bring, server, other, code):
    to = f"{other.url}/objects/batch"
    server.batch = [Fault(code, {"Location": to}, b"")]
    assert bring(server.url) == CONTENT
    assert json.loads(other.seen[0].body)["objects"][0]["oid"] == OID


def test_a_download_is_redirected_and_resumed(bring, server, other):
    to = {"Location": f"{other.origin}/objects/{OID}"}
    server.get = [Fault(302, to, b""), Fault(302, to, b"")]
    other.get = [Fault(drop_after=100_000)]
    assert bring(server.url) == CONTENT
    assert other.ranges() == [None, "bytes=100000-"]


def test_a_circle_of_redirects_ends(bring, server):
    server.batch = [Fault(307, {"Location": "/repo.git/info/lfs/objects/batch"}, b"") for _ in range(99)]
    assert "redirects more than 5 times" in refusal(bring, server.url)


def test_a_redirect_takes_no_login_and_no_secret_header_to_another_host(bring, server, other):
    server.login, server.signing = ("ann", "s3cret"), True
    server.get = [Fault(302, {"Location": f"{other.origin}/objects/{OID}"}, b"")]
    assert bring(server.url, login=lambda url: Login("ann", "s3cret")) == CONTENT
    for one in other.seen:
        assert "authorization" not in one.headers
        assert "x-signed" not in one.headers
    assert server.seen[-1].headers["x-signed"] == "yes"


# ---- logins


def test_a_login_is_asked_for_when_the_server_wants_one(bring, server):
    server.login = ("ann", "s3cret")
    asked = []

    def login(url):
        asked.append(url)
        return Login("ann", "s3cret")

    assert bring(server.url, login=login) == CONTENT
    assert [one.reveal() for one in asked] == [f"{server.url}/objects/batch"]


def test_no_login_is_asked_for_or_sent_when_none_is_wanted(bring, server):
    def login(url):
        raise AssertionError(url)

    assert bring(server.url, login=login) == CONTENT
    assert all("authorization" not in one.headers for one in server.seen)


def test_a_login_in_the_url_is_used(bring, server):
    server.login = ("ann", "p@ss:word")
    url = server.url.replace("http://", "http://ann:p%40ss%3Aword@")
    assert bring(url) == CONTENT


def test_a_header_of_the_batch_answer_is_sent(bring, server):
    server.login, server.signing = ("ann", "s3cret"), True
    assert bring(server.url, login=lambda url: Login("ann", "s3cret")) == CONTENT
    assert server.seen[-1].headers["x-signed"] == "yes"


@pytest.mark.parametrize("login", [None, Login("ann", "wr0ng")])
def test_a_login_that_fails_says_what_to_do(bring, server, login):
    server.login = ("ann", "s3cret")
    text = refusal(bring, server.url, login=lambda url: login)
    assert f"{server.url}: 401, Unauthorized: git knows no login that this server takes" in text
    assert "git help credentials" in text
    assert "wr0ng" not in text


def test_403_asks_for_a_login_too(bring, server):
    server.batch = [Fault(403, body=b"")]
    assert bring(server.url, login=lambda url: Login("ann", "s3cret")) == CONTENT


def test_no_secret_is_in_any_log_or_error(bring, server, caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("httpx").setLevel(logging.DEBUG)
    logging.getLogger("httpcore").setLevel(logging.DEBUG)
    server.login = ("ann", "s3cret")
    server.signature = "sig=t0ken"
    away = {"Location": "/elsewhere?sig=t0ken", "Set-Cookie": "c00kie"}
    server.get = [Fault(302, away, b""), Fault(418, body=b"t0ken")] * 2
    url = server.url.replace("http://", "http://ann:s3cret@") + "?key=t0ken"
    text = refusal(bring, url, server.url, login=lambda url: Login("ann", "s3cret"))
    assert server.url in text
    for secret in ("s3cret", "t0ken", "c00kie", "YW5uOnMzY3JldA"):
        assert secret not in text
        assert secret not in caplog.text


# ---- answers that grow, and objects that have no room


def bomb(size):
    """A batch answer that decodes to so many bytes."""
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(bytes(1 << 20)) for _ in range(size >> 20)]
    return b"".join([*parts, packer.flush()])


def test_a_compressed_answer_takes_no_memory(bring, server):
    server.batch = [Fault(200, {"Content-Encoding": "gzip"}, bomb(1 << 28))]
    tracemalloc.start()
    try:
        assert "its batch answer is longer than 1048576 bytes" in refusal(bring, server.url)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert server.seen[0].headers["accept-encoding"] == "identity"


def test_an_answer_that_is_compressed_all_the_same_is_read(bring, server):
    request = {"objects": [{"oid": OID, "size": len(CONTENT)}]}
    answer = server._batch(Seen("POST", "", TYPES, json.dumps({"operation": "download", **request}).encode()))
    server.batch = [Fault(200, {"Content-Encoding": "gzip"}, gzip.compress(answer))]
    assert bring(server.url) == CONTENT


TYPES = dict.fromkeys(("content-type", "accept"), "application/vnd.git-lfs+json")


@pytest.mark.parametrize("size", [10**17, 10**15])
def test_an_object_that_has_no_room_is_refused_before_its_first_byte(bring, server, tmp_path, size):
    told = refusal(bring, server.url, pointer=Pointer(OID, size))
    assert f"Git LFS object {OID}: {size:,} bytes are announced, expected at most " in told
    assert server.seen == []
    assert [path.name for path in (tmp_path / "incoming").iterdir()] == [f"{OID}.lock"]


def test_what_nobody_can_go_on_with_is_not_kept(bring, server, tmp_path):
    server.get = [Fault(200, {}, CONTENT + b"more", unsized=True)]
    assert "got more" in refusal(bring, server.url)
    assert [path.name for path in (tmp_path / "incoming").iterdir()] == [f"{OID}.lock"]


@pytest.mark.parametrize("code", [403, 404, 422])
def test_a_server_s_own_sentence_is_told(bring, server, code):
    said = {"message": "This repository is over its data quota.\x1b[2J", "documentation_url": "https://x/"}
    server.batch = [Fault(code, {}, json.dumps(said).encode())] * 2
    told = refusal(bring, server.url)
    assert f"{code}, " in told
    assert '(it says "This repository is over its data quota.\\x1b[2J")' in told
    assert "git help credentials" not in told


def test_a_server_s_own_sentence_repeats_no_login(bring, server):
    said = json.dumps({"message": "no: s3cret is wrong, see https://ann:s3cret@x/?t=s3cret"}).encode()
    server.batch = [Fault(401), Fault(403, {}, said)]
    assert "s3cret" not in refusal(bring, server.url, login=lambda url: Login("ann", "s3cret"))
