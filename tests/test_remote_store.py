"""A shared store behind real servers: what it gives is checked, and no build fails or waits for it."""

import base64
import contextlib
import gzip
import hashlib
import http.server
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import fsspec
import pytest
import ssh_server
from conftest import needs
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from rules.build import build
from rules.decide import Judge
from rules.errors import CatalogError
from rules.keeping.records import Record
from rules.keeping.remote import Breaker, Down, Pace, Remote, Settings, settings
from rules.keeping.remote_entry import Blob, Entry, Poisoned, decoded, encoded
from rules.keeping.reuse import ANYWHERE, SIGNED, Reuse
from rules.step import Made, Step
from rules.workspace import Workspace

BIG = b"bytes of an artifact" * 100_000
FILES = {"artifact": BIG, ".p00": b"", "driving_policy.onnx": b"small"}
FACTS = {"devices": ["CPU"], "seconds": 1.5}
PATIENCE_S = 60  # far beyond every timeout below: only a hang takes so long
KEY = "ab" * 32

# ---- machines


@dataclass
class Machine:
    """A workspace, and how often it really made something."""

    root: Path
    remote: Settings | None = None
    made: int = 0
    reuse: Reuse = ANYWHERE

    def __post_init__(self) -> None:
        self.workspace = Workspace(self.root)
        if self.remote is not None:
            self.workspace.remote = Remote(self.remote, self.workspace.store)

    def step(self, task: str, files: dict[str, bytes]) -> Step:
        def make(scratch: Path, _: object) -> Made:
            self.made += 1
            for name, content in files.items():
                (scratch / name).write_bytes(content)
            return Made({name: scratch / name for name in files}, FACTS)

        return Step(
            task=task,
            record=task.replace(":", "_"),
            doc="",
            settings=lambda: {"task": task},
            make=make,
            place=lambda name: f"made/{task.partition(':')[2]}_{name}",
            reuse=lambda: self.reuse,
        )

    def build(self, task: str = "pkl:one", files: dict[str, bytes] = FILES) -> Record:
        record = build(self.step(task, files), Judge(self.workspace), self.workspace)
        for output in record.outputs:
            assert self.workspace.path(output.path).read_bytes() == files[output.name]
        return record

    def end(self) -> tuple[str, ...]:
        assert self.workspace.remote is not None
        return self.workspace.remote.close()


def in_time(work):
    """The result of `work()`, which must not hang."""
    results = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"
    return results[0]


# ---- servers


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until(true) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


NGINX = """
daemon off; pid {folder}/pid; error_log {folder}/error.log; worker_processes 1;
{user}
events {{}}
http {{
  access_log {folder}/access.log; client_body_temp_path {folder}/body; client_max_body_size 0;
  proxy_temp_path {folder}/t1; fastcgi_temp_path {folder}/t2;
  uwsgi_temp_path {folder}/t3; scgi_temp_path {folder}/t4;
  server {{ listen 127.0.0.1:{port}; root {folder}/root; location / {{ {dav} }} }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path, dav: str = "dav_methods PUT; create_full_put_path on;") -> Iterator[str]:
    program = needs("nginx")
    port = free_port()
    (folder / "root").mkdir(parents=True)
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "conf").write_text(NGINX.format(folder=folder, port=port, dav=dav, user=user))
    with subprocess.Popen([program, "-c", str(folder / "conf"), "-e", str(folder / "error.log")]) as process:
        try:
            wait_until(lambda: answers(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


class Bazel(http.server.BaseHTTPRequestHandler):
    """The rules of bazel-remote: digests checked, results validated and given out again as its own JSON."""

    protocol_version = "HTTP/1.1"
    kept: dict[str, bytes]
    login = base64.b64encode(b"builder:p@ss/word").decode()

    def do_GET(self) -> None:
        content = self.kept.get(self.path)
        if content is not None and self.path.startswith("/ac/"):
            content = (
                self._shown(json.loads(content)) if self.headers["Accept"] == "application/json" else b"\x0a"
            )
        self._reply(404 if content is None else 200, content or b"")

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        kind, _, name = self.path[1:].partition("/")
        fine = hashlib.sha256(content).hexdigest() == name if kind == "cas" else self._valid(content)
        if fine and self.headers["Authorization"] == f"Basic {self.login}":
            self.kept[self.path] = content
            self._reply(200)
        else:
            self._reply(400 if not fine else 401)

    def _valid(self, content: bytes) -> bool:
        raw = json.loads(content)
        digests = [file["digest"] for file in raw["outputFiles"]]
        return (
            self.headers["Content-Type"] == "application/json"
            and raw.keys() <= {"outputFiles", "stdoutRaw", "stderrRaw"}
            and all(len(self.kept[f"/cas/{one['hash']}"]) == int(one["sizeBytes"]) for one in digests)
        )

    def _shown(self, raw: dict) -> bytes:
        for file in raw["outputFiles"]:
            if file["digest"]["sizeBytes"] == "0":
                del file["digest"]["sizeBytes"]
        return json.dumps({**raw, "executionMetadata": {"worker": "127.0.0.1"}}).encode()

    def _reply(self, status: int, content: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def bazel() -> Iterator[str]:
    handler = type("Own", (Bazel,), {"kept": {}})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://builder:p%40ss%2Fword@127.0.0.1:{server.server_port}"
        server.shutdown()


@dataclass
class Raw:
    """A TCP server that treats each connection as `treat` says, and counts them."""

    treat: object
    connections: list[socket.socket] = field(default_factory=list)

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.getsockname()[1]}"
            finally:
                server.shutdown(socket.SHUT_RDWR)
                for one in self.connections:
                    with contextlib.suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                self.connections.append(connection)
                threading.Thread(target=self._treat, args=(connection,), daemon=True).start()

    def _treat(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self.treat(connection)


def silence(connection: socket.socket) -> None:
    connection.recv(1)


def trickle(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        connection.sendall(b" ")
        time.sleep(0.02)


def deaf_to_uploads(connection: socket.socket) -> None:
    while (asked := connection.recv(65536)) and not asked.startswith(b"PUT"):
        connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")


@pytest.fixture(params=["nginx", "bazel", "sftp", "file", "memory"])
def url(request, tmp_path: Path, monkeypatch) -> Iterator[str]:
    if request.param == "sftp":
        with ssh_server.running(tmp_path / "sshd") as server:
            server.settle(tmp_path / "home")
            monkeypatch.setenv("HOME", str(tmp_path / "home"))
            yield server.url(tmp_path / "shared", "sftp")
    elif request.param in ("file", "memory"):
        yield f"{request.param}://{tmp_path}/shared"
    else:
        with nginx(tmp_path / "nginx") if request.param == "nginx" else bazel() as where:
            yield where


@pytest.fixture(params=["nginx", "file"])
def shared(request, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """A store whose files the test can spoil: its URL and folder."""
    if request.param == "file":
        yield f"file://{tmp_path}/shared", tmp_path / "shared"
    else:
        with nginx(tmp_path / "nginx") as where:
            yield where, tmp_path / "nginx" / "root"


# ---- the rule


def test_what_one_machine_built_another_restores(url: str, tmp_path: Path) -> None:
    first, second = (Machine(tmp_path / name, Settings(url)) for name in ("first", "second"))
    built = first.build()
    assert built.made == "built"
    assert first.end() == ()
    restored = second.build()
    assert second.end() == ()
    assert (second.made, restored.made) == (0, "restored")
    assert (restored.outputs, restored.key, restored.facts) == (built.outputs, built.key, built.facts)


def test_a_restored_result_is_local_from_then_on(url: str, tmp_path: Path) -> None:
    first, second = (Machine(tmp_path / name, Settings(url)) for name in ("first", "second"))
    first.build()
    first.end()
    key = second.build().key
    shutil.rmtree(tmp_path / "second" / "made")
    alone = Machine(tmp_path / "second")
    assert alone.build().made == "restored"
    assert alone.workspace.store.result(key)["step"] == "pkl:one"


def test_a_step_without_outputs_travels_too(url: str, tmp_path: Path) -> None:
    first, second = (Machine(tmp_path / name, Settings(url)) for name in ("first", "second"))
    first.build("parts:one", {})
    assert first.end() == ()
    assert second.build("parts:one", {}).made == "restored"


def test_nothing_goes_up_when_write_is_off(shared, tmp_path: Path) -> None:
    url, folder = shared
    machine = Machine(tmp_path / "one", Settings(url, write=False))
    assert machine.build().made == "built"
    assert machine.end() == ()
    assert not [path for path in folder.rglob("*") if path.is_file()]


def test_bytes_that_are_there_are_not_sent_again(tmp_path: Path) -> None:
    with nginx(tmp_path / "nginx") as url:
        for name in ("first", "second"):
            machine = Machine(tmp_path / name, Settings(url))
            machine.build(f"pkl:{name}")
            assert machine.end() == ()
        log = (tmp_path / "nginx" / "access.log").read_text()
        sent = [line for line in log.splitlines() if "PUT /cas/" in line]
        assert len(sent) == len(FILES)


# ---- poison


def spoil_same_size(folder: Path) -> None:
    blob(folder).write_bytes(b"X" * len(BIG))


def spoil_longer(folder: Path) -> None:
    blob(folder).write_bytes(BIG + b"more")


def spoil_cut(folder: Path) -> None:
    blob(folder).write_bytes(BIG[:-1])


def blob(folder: Path) -> Path:
    return folder / "cas" / hashlib.sha256(BIG).hexdigest()


def entry(folder: Path) -> Path:
    (path,) = (folder / "ac").iterdir()
    return path


def spoil_json(folder: Path) -> None:
    entry(folder).write_bytes(b'{"outputFiles": [')


def spoil_nested(folder: Path) -> None:
    entry(folder).write_bytes(b"[" * 200_000)


def spoil_missing(folder: Path) -> None:
    entry(folder).write_bytes(b"{}")


def spoil_huge(folder: Path) -> None:
    with entry(folder).open("ab") as file:
        file.write(b" " * (17 << 20))


def renaming(name: str):
    def spoil(folder: Path) -> None:
        raw = json.loads(entry(folder).read_bytes())
        raw["outputFiles"][0]["path"] = name
        entry(folder).write_text(json.dumps(raw))

    return spoil


def digesting(**digest: object):
    def spoil(folder: Path) -> None:
        raw = json.loads(entry(folder).read_bytes())
        raw["outputFiles"][0]["digest"] |= digest
        entry(folder).write_text(json.dumps(raw))

    return spoil


POISON = [
    *(spoil_same_size, spoil_longer, spoil_cut, spoil_json, spoil_nested, spoil_missing, spoil_huge),
    *(
        renaming(name)
        for name in ("../evil", "/tmp/evil", "a/b", "..", "", ".p00", "a\\b", "a\nb", "a" * 300)
    ),
    *(digesting(hash=text) for text in ("../../mine", "../" + "a" * 61, "AB" * 32, 7, None)),
    *(digesting(sizeBytes=size) for size in ("many", -1, None, [])),
]


@pytest.mark.parametrize("spoil", POISON)
def test_poison_is_refused_reported_and_healed(spoil, tmp_path: Path) -> None:
    url, folder = f"file://{tmp_path}/shared", tmp_path / "shared"
    first = Machine(tmp_path / "first", Settings(url))
    first.build()
    first.end()
    spoil(folder)
    second = Machine(tmp_path / "second", Settings(url))
    assert second.build().made == "built"
    (line,) = second.end()
    assert line.startswith(f"remote store {url}: refused ")
    assert {path.name for path in (tmp_path / "second" / "made").iterdir()} == {
        f"one_{name}" for name in FILES
    }
    third = Machine(tmp_path / "third", Settings(url))
    assert third.build().made == "restored"
    assert third.end() == ()


def test_poison_over_http_is_refused(tmp_path: Path) -> None:
    with nginx(tmp_path / "nginx") as url:
        first, second = (Machine(tmp_path / name, Settings(url)) for name in ("first", "second"))
        first.build()
        first.end()
        spoil_same_size(tmp_path / "nginx" / "root")
        assert second.build().made == "built"
        (line,) = second.end()
        assert "refused cas/" in line


def test_a_result_whose_bytes_were_dropped_is_built_without_a_word(shared, tmp_path: Path) -> None:
    url, folder = shared
    first, second = (Machine(tmp_path / name, Settings(url)) for name in ("first", "second"))
    first.build()
    first.end()
    blob(folder).unlink()
    assert second.build().made == "built"
    assert second.end() == ()


# ---- bodies without bounds


def answering(head: str, body: bytes, *, again: bool = False):
    """A server that answers every request alike; with `again`, its body never ends."""

    def treat(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(f"HTTP/1.1 {head}\r\nConnection: close\r\n\r\n".encode() + body)
        while again:
            connection.sendall(body)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)

    return treat


BOMB = gzip.compress(bytes(64 << 20))
PAGE = b"<!doctype html><title>Sign in</title>"
CHUNK = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
BODIES = {
    "compressed": (answering("200 OK\r\nContent-Encoding: gzip", BOMB), "got them encoded: 'gzip'"),
    "twice compressed": (
        answering("200 OK\r\nContent-Encoding: gzip, br", BOMB),
        "got them encoded: 'gzip, br'",
    ),
    "endless": (answering("200 OK", b" " * 65536, again=True), "expected at most 4,194,304 bytes, got more"),
    "endless chunks": (answering("200 OK\r\nTransfer-Encoding: chunked", CHUNK, again=True), "got more"),
    "longer than told": (
        answering("200 OK\r\nContent-Length: 4", b"{}  " * 1000),
        "expected a result as JSON",
    ),
    "shorter than told": (answering(f"200 OK\r\nContent-Length: {10**15}", b"{}"), "went on without it"),
    "a page": (answering(f"200 OK\r\nContent-Length: {len(PAGE)}", PAGE), "expected a result as JSON"),
    "a redirect to a file": (
        answering("302 Found\r\nLocation: file:///etc/passwd", b""),
        "answered 302 to GET",
    ),
}


@pytest.mark.parametrize(("treat", "told"), BODIES.values(), ids=BODIES)
def test_whatever_a_store_answers_is_bounded_and_told(treat, told: str, tmp_path: Path) -> None:
    with Raw(treat).serving() as url:
        machine = Machine(tmp_path / "one", Settings(url, timeout=20, write=False))
        assert in_time(machine.build).made == "built"
        (line,) = in_time(machine.end)
    assert line.startswith(f"remote store {url}: ")
    assert told in line


def test_a_redirect_sends_nobody_to_another_host(tmp_path: Path) -> None:
    other = Raw(silence)
    with contextlib.ExitStack() as stack:
        elsewhere = stack.enter_context(other.serving())
        redirecting = Raw(answering(f"307 Temporary Redirect\r\nLocation: {elsewhere}/ac", b""))
        machine = Machine(tmp_path / "one", Settings(stack.enter_context(redirecting.serving())))
        assert in_time(machine.build).made == "built"
        (line,) = in_time(machine.end)
    assert "answered 307" in line
    assert other.connections == []


@pytest.mark.parametrize("size", [10**15, (1 << 63) - 1])
def test_a_size_beyond_the_disk_is_not_even_fetched(size: int, tmp_path: Path) -> None:
    url, folder = f"file://{tmp_path}/shared", tmp_path / "shared"
    first, second = (Machine(tmp_path / name, Settings(url)) for name in ("first", "second"))
    first.build()
    first.end()
    digesting(sizeBytes=str(size))(folder)
    assert second.build().made == "built"
    (line,) = second.end()
    assert f"cannot be kept here: {size:,} bytes" in line or f"{size + 5:,} bytes" in line


def test_a_compressed_blob_is_refused(tmp_path: Path) -> None:
    url, folder = f"file://{tmp_path}/shared", tmp_path / "shared"
    first = Machine(tmp_path / "first", Settings(url))
    first.build()
    first.end()
    result = entry(folder).read_bytes()

    def treat(connection: socket.socket) -> None:
        asked = connection.recv(65536)
        body, head = (result, "") if b"GET /ac/" in asked else (BOMB, "\r\nContent-Encoding: gzip")
        connection.sendall(f"HTTP/1.1 200 OK\r\nConnection: close{head}\r\n\r\n".encode() + body)
        connection.shutdown(socket.SHUT_WR)

    with Raw(treat).serving() as where:
        second = Machine(tmp_path / "second", Settings(where, timeout=20, write=False))
        assert in_time(second.build).made == "built"
        (line,) = second.end()
    assert "refused cas/" in line
    assert "encoded: 'gzip'" in line


def test_many_refusals_are_told_in_a_few_lines(tmp_path: Path) -> None:
    with Raw(answering(f"200 OK\r\nContent-Length: {len(PAGE)}", PAGE)).serving() as url:
        machine = Machine(tmp_path / "one", Settings(url, timeout=20, write=False))
        for name in "abcdefgh":
            assert machine.build(f"pkl:{name}").made == "built"
        lines = machine.end()
    assert len(lines) == 6
    assert lines[-1].endswith("and 3 more of that kind")


# ---- signatures


@dataclass
class Keys:
    """Key pairs made by ssh-keygen, and who of them is trusted."""

    folder: Path

    def pair(self, name: str, passphrase: str = "") -> Path:
        path = self.folder / name
        command = [needs("ssh-keygen"), "-q", "-t", "ed25519", "-N", passphrase, "-C", name, "-f", str(path)]
        subprocess.run(command, check=True)
        return path

    def trusting(self, *keys: Path, options: str = "") -> Path:
        allowed = self.folder / "allowed-signers"
        lines = [f"{key.name}@example.com {options}{key.with_suffix('.pub').read_text()}" for key in keys]
        allowed.write_text("".join(lines))
        return allowed


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    (tmp_path / "keys").mkdir()
    return Keys(tmp_path / "keys")


def test_what_a_trusted_key_signed_is_restored(url: str, keys: Keys, tmp_path: Path) -> None:
    alice, bob = keys.pair("alice"), keys.pair("bob")
    trust = keys.trusting(bob, alice)
    first = Machine(tmp_path / "first", Settings(url, sign=alice))
    second = Machine(tmp_path / "second", Settings(url, trust=trust))
    first.build()
    assert first.end() == ()
    assert second.build().made == "restored"
    assert second.end() == ()


def resigned(key: Path, namespace: str):
    def spoil(folder: Path) -> None:
        raw, name = entry(folder), entry(folder).name
        message = decoded(raw.read_bytes()).signed(name)
        command = [needs("ssh-keygen"), "-q", "-Y", "sign", "-n", namespace, "-f", str(key)]
        made = subprocess.run(command, input=message, capture_output=True, check=True).stdout.decode()
        raw.write_bytes(encoded(replace(decoded(raw.read_bytes()), signature=made)))

    return spoil


def rewritten(**changes: object):
    def spoil(folder: Path) -> None:
        entry(folder).write_bytes(encoded(replace(decoded(entry(folder).read_bytes()), **changes)))

    return spoil


SPOILED_SIGNATURES = {
    "none": (lambda _: rewritten(signature=""), "it is not signed"),
    "no signature": (lambda _: rewritten(signature="trust me"), "it is signed by a key that is not there"),
    "endless": (lambda _: rewritten(signature="x" * 100_000), "what it has for a signature is none"),
    "another key": (lambda keys: resigned(keys.pair("eve"), "modelyard-result"), "a key that is not there"),
    "for another purpose": (lambda keys: resigned(keys.folder / "alice", "git"), "is not valid for it"),
    "other facts": (lambda _: rewritten(facts={"seconds": 2.5}), "is not valid for it"),
    "another step": (lambda _: rewritten(step="pkl:two"), "is not valid for it"),
    "another size": (lambda _: digesting(sizeBytes="7"), "is not valid for it"),
    "other bytes": (lambda _: digesting(hash="0" * 64), "is not valid for it"),
}


@pytest.mark.parametrize(("spoiling", "told"), SPOILED_SIGNATURES.values(), ids=SPOILED_SIGNATURES)
def test_what_nobody_trusted_signed_is_not_read(spoiling, told: str, keys: Keys, tmp_path: Path) -> None:
    url, folder, alice = f"file://{tmp_path}/shared", tmp_path / "shared", keys.pair("alice")
    trust = keys.trusting(alice)
    first, second = (
        Machine(tmp_path / n, Settings(url, trust=trust, sign=alice)) for n in ("first", "second")
    )
    first.build()
    assert first.end() == ()
    spoiling(keys)(folder)
    assert second.build().made == "built"
    (line,) = second.end()
    assert f"did not read 1 result that nobody in {trust} signed, the first of them ac/" in line
    assert told in line
    third = Machine(tmp_path / "third", Settings(url, trust=trust))  # it is healed
    assert third.build().made == "restored"


def test_a_signed_result_is_not_one_of_another_key(keys: Keys, tmp_path: Path) -> None:
    url, folder, alice = f"file://{tmp_path}/shared", tmp_path / "shared", keys.pair("alice")
    first, second = (Machine(tmp_path / n, Settings(url, sign=alice)) for n in ("first", "second"))
    first.build("pkl:one")
    first.end()
    signed = entry(folder).read_bytes()
    entry(folder).unlink()
    second.build("pkl:two")
    second.end()
    entry(folder).write_bytes(signed)
    third = Machine(tmp_path / "third", Settings(url, trust=keys.trusting(alice), write=False))
    assert third.build("pkl:two").made == "built"
    assert "is not valid for it" in third.end()[0]


def test_a_signer_of_another_namespace_is_trusted_for_that_only(keys: Keys, tmp_path: Path) -> None:
    url, alice = f"file://{tmp_path}/shared", keys.pair("alice")
    trust = keys.trusting(alice, options='namespaces="git" ')
    first = Machine(tmp_path / "first", Settings(url, sign=alice))
    second = Machine(tmp_path / "second", Settings(url, trust=trust, write=False))
    first.build()
    first.end()
    assert second.build().made == "built"
    assert "did not read 1 result" in second.end()[0]


def test_unsigned_results_are_told_once_a_run(tmp_path: Path, keys: Keys) -> None:
    url = f"file://{tmp_path}/shared"
    first = Machine(tmp_path / "first", Settings(url))
    trust = keys.trusting(keys.pair("alice"))
    second = Machine(tmp_path / "second", Settings(url, trust=trust, write=False))
    for machine in (first, second):
        assert [machine.build(f"pkl:{name}").made for name in "abc"] == ["built"] * 3
    assert first.end() == ()
    (line,) = second.end()
    assert "did not read 3 results that nobody in" in line


def test_a_key_that_asks_for_a_passphrase_signs_nothing_and_does_not_wait(keys: Keys, tmp_path: Path) -> None:
    key = keys.pair("alice", "secret words")
    machine = Machine(tmp_path / "one", Settings(f"file://{tmp_path}/shared", sign=key))
    assert machine.build().made == "built"
    (line,) = in_time(machine.end)
    assert f"what is made here cannot be signed: {key}: " in line
    assert "1 result not uploaded" in line
    assert not (tmp_path / "shared" / "ac").exists()


def test_what_must_be_signed_is_not_asked_for_where_nobody_is_trusted(keys: Keys, tmp_path: Path) -> None:
    url, alice = f"file://{tmp_path}/shared", keys.pair("alice")
    signed = Settings(url, sign=alice, trust=keys.trusting(alice))
    first = Machine(tmp_path / "first", signed, reuse=SIGNED)
    second = Machine(tmp_path / "second", Settings(url), reuse=SIGNED)
    third = Machine(tmp_path / "third", signed, reuse=SIGNED)
    assert [one.build().made for one in (first, second)] == ["built"] * 2
    assert first.end() == second.end() == ()
    assert third.build().made == "restored"
    shutil.rmtree(tmp_path / "shared")
    fourth = Machine(tmp_path / "fourth", Settings(url), reuse=SIGNED)
    assert fourth.build().made == "built"
    assert fourth.end() == ()
    assert not (tmp_path / "shared").exists()  # unsigned, nobody would read it


@pytest.mark.parametrize("name", ["trust", "sign"])
def test_a_missing_file_of_signers_or_key_is_told(name: str, tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match=rf"store.{name}: .*/nobody: no such file"):
        settings({"remote": "file:///x", name: "nobody"}, tmp_path)
    (tmp_path / "nobody").touch()
    found = settings({"remote": "file:///x", name: "nobody"}, tmp_path)
    assert getattr(found, name) == tmp_path / "nobody"


# ---- stores that are not there


def test_a_host_whose_key_is_another_gets_and_gives_nothing(tmp_path: Path, monkeypatch) -> None:
    with ssh_server.running(tmp_path / "sshd") as server:
        server.settle(tmp_path / "home")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        known = tmp_path / "home/.ssh/known_hosts"
        kind, key, *_ = (tmp_path / "sshd/stranger.pub").read_text().split()
        known.write_text(f"[127.0.0.1]:{server.port} {kind} {key}\n")
        machine = Machine(tmp_path / "first", Settings(server.url(tmp_path / "shared", "sftp")))
        assert machine.build().made == "built"
        (line,) = machine.end()
    assert "known_hosts" in line
    assert not (tmp_path / "shared").exists()


def test_a_closed_port_costs_a_line(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "one", Settings(f"http://me:hidden@127.0.0.1:{free_port()}/?token=t0ken"))
    assert [machine.build(f"pkl:{name}").made for name in "abc"] == ["built"] * 3
    (line,) = machine.end()
    assert "refused" in line
    assert "went on without it" in line
    assert "hidden" not in line
    assert "t0ken" not in line


def test_a_black_hole_is_asked_once(tmp_path: Path) -> None:
    hole = Raw(silence)
    with hole.serving() as url:
        machine = Machine(tmp_path / "one", Settings(url, timeout=0.3))
        assert in_time(lambda: [machine.build(f"pkl:{name}").made for name in "abcd"]) == ["built"] * 4
        (line,) = in_time(machine.end)
    assert len(hole.connections) == 1
    assert "no answer within 0.3 s; this run went on without it" in line


def test_the_first_failure_frees_everyone_who_waits() -> None:
    breaker = Breaker(timeout=10 * PATIENCE_S)
    asked, never = threading.Barrier(4), threading.Event()

    def ask() -> str:
        def request(_: Pace) -> None:
            asked.wait(PATIENCE_S)
            never.wait()

        with pytest.raises(Down) as down:
            breaker.call(request)
        return str(down.value)

    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(ask) for _ in range(3)]
        asked.wait(PATIENCE_S)
        breaker.trip("gone")
        assert [one.result(PATIENCE_S) for one in waiting] == ["gone"] * 3
    never.set()
    with pytest.raises(Down, match="gone"):
        breaker.call(lambda _: pytest.fail("it was asked again"))


def test_a_trickle_is_a_dead_store(tmp_path: Path) -> None:
    with Raw(trickle).serving() as url:
        machine = Machine(tmp_path / "one", Settings(url, timeout=0.3))
        assert in_time(machine.build).made == "built"
        (line,) = in_time(machine.end)
        assert "no answer within 0.3 s" in line


def test_a_store_that_takes_no_upload_ends_the_run_all_the_same(tmp_path: Path) -> None:
    """It is asked for nothing before: on a busy machine that answer, too, may take too long."""
    machine = Machine(tmp_path / "one")
    key = machine.build(files={"artifact": BIG * 20}).key
    with Raw(deaf_to_uploads).serving() as url:
        remote = Remote(Settings(url, timeout=0.3), machine.workspace.store)
        remote.offer(key, machine.workspace.store.read_result(key))
        (line,) = in_time(remote.close)
    assert "no answer within 0.3 s; 1 result not uploaded" in line


def test_a_store_that_refuses_uploads_is_asked_once_and_still_read(tmp_path: Path) -> None:
    with nginx(tmp_path / "nginx", dav="") as url:
        machine = Machine(tmp_path / "one", Settings(url))
        assert [machine.build(f"pkl:{name}").made for name in "ab"] == ["built"] * 2
        (line,) = machine.end()
        assert "it answered 405 to PUT /cas/" in line
        assert "2 results not uploaded" in line
        log = (tmp_path / "nginx" / "access.log").read_text()
        assert log.count("PUT ") == 1
        assert log.count("GET /ac/") == 2


def test_an_unknown_scheme_costs_a_line(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "one", Settings("nosuch://bucket/folder"))
    assert machine.build().made == "built"
    (line,) = machine.end()
    assert "nosuch" in line


class Loud(MemoryFileSystem):
    """It tells its whole URL when it fails, as some do."""

    protocol = "loud"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        raise OSError(f"cannot reach {path}")


class Stuck(MemoryFileSystem):
    """An upload to it never ends, like one to a mount that hangs."""

    protocol = "stuck"

    def put_file(self, *_: object, **__: object) -> None:
        threading.Event().wait()


def test_a_file_system_that_tells_its_url_tells_no_secret(tmp_path: Path) -> None:
    fsspec.register_implementation("loud", Loud, clobber=True)
    machine = Machine(tmp_path / "one", Settings("loud://me:hid%2Fden@bucket/folder?token=t0ken"))
    assert machine.build().made == "built"
    (line,) = machine.end()
    assert "cannot reach loud://" in line
    assert not [secret for secret in ("hid", "den", "t0ken") if secret in line]


def test_an_upload_that_hangs_is_given_up(tmp_path: Path) -> None:
    fsspec.register_implementation("stuck", Stuck, clobber=True)
    machine = Machine(tmp_path / "one", Settings("stuck://folder", timeout=0.3))
    assert machine.build(files={"artifact": b"small"}).made == "built"
    (line,) = in_time(machine.end)
    assert "no answer within 0.3 s; 1 result not uploaded" in line


def test_an_interrupted_run_does_not_wait(tmp_path: Path) -> None:
    with Raw(deaf_to_uploads).serving() as url:
        machine = Machine(tmp_path / "one", Settings(url, timeout=10 * PATIENCE_S))
        machine.build()
        (line,) = in_time(lambda: machine.workspace.remote.close(wait=False))
        assert "interrupted; 1 result not uploaded" in line


# ---- uploads that are killed

UPLOADER = """
import sys
from pathlib import Path
from rules.keeping.remote import Remote, Settings
from rules.workspace import Workspace
url, root, made, key = sys.argv[1:]
store = Workspace(Path(root)).store
result = {"outputs": [{"name": "artifact", "sha256": store.put(Path(made))}], "facts": {}, "step": "pkl:one"}
remote = Remote(Settings(url), store)
remote.offer(key, result)
print(remote.close())
"""
LARGE = 96 << 20


@contextlib.contextmanager
def uploading(url: str, tmp_path: Path) -> Iterator[subprocess.Popen]:
    made = tmp_path / "made"
    with made.open("wb") as file:
        file.truncate(LARGE)
    command = [sys.executable, "-c", UPLOADER, url, str(tmp_path / "uploader"), str(made), KEY]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def restored(url: str, root: Path) -> dict | None:
    remote = Remote(Settings(url), Workspace(root).store)
    entry = remote.entry(KEY, ANYWHERE)
    return entry.result if entry is not None and remote.fetch(entry) else None


def test_an_upload_killed_midway_leaves_no_name_behind(tmp_path: Path) -> None:
    with nginx(tmp_path / "nginx") as url:
        passed = threading.Event()

        def relay(connection: socket.socket) -> None:
            """The first megabytes reach the server, then nothing moves."""
            left = 8 << 20
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as server:
                threading.Thread(target=pump, args=(server, connection), daemon=True).start()
                while left > 0 and (piece := connection.recv(65536)):
                    server.sendall(piece)
                    left -= len(piece)
                passed.set()
                while connection.recv(1, socket.MSG_PEEK):
                    time.sleep(0.01)
                    if process.poll() is not None:
                        return

        with Raw(relay).serving() as slow, uploading(slow, tmp_path) as process:
            assert passed.wait(PATIENCE_S)
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)
        names = [path for path in (tmp_path / "nginx" / "root").rglob("*") if path.is_file()]
        assert names == []
        assert restored(url, tmp_path / "second") is None
        with uploading(url, tmp_path) as process:
            assert process.communicate(timeout=PATIENCE_S)[0] == "()\n"
        assert restored(url, tmp_path / "third")["step"] == "pkl:one"


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)


def test_an_upload_to_a_folder_killed_midway_leaves_no_wrong_name(tmp_path: Path) -> None:
    cas = tmp_path / "shared" / "cas"
    url = f"file://{tmp_path}/shared"
    with uploading(url, tmp_path) as process:
        wait_until(lambda: cas.is_dir() and any(cas.iterdir()))
        process.send_signal(signal.SIGKILL)
    for path in cas.iterdir():
        assert path.name.startswith(".tmp-") or path.stat().st_size == LARGE
    with uploading(url, tmp_path) as process:
        assert process.communicate(timeout=PATIENCE_S)[0] == "()\n"
    assert restored(url, tmp_path / "second")["step"] == "pkl:one"


# ---- settings and secrets


def test_there_is_no_remote_store_unless_configured(monkeypatch) -> None:
    monkeypatch.delenv("MODELS_REMOTE", raising=False)
    assert settings({}) is None
    assert settings({"remote": "file:///x", "timeout_s": 2, "write": False}) == Settings(
        "file:///x", 2.0, False
    )
    monkeypatch.setenv("MODELS_REMOTE", "file:///y")
    assert settings({"remote": "file:///x"}) == Settings("file:///y")
    monkeypatch.setenv("MODELS_REMOTE", "")
    assert settings({"remote": "file:///x"}) is None


@pytest.mark.parametrize("text", ["cache", "http://[half", "http://h:port", "//secret@host", "http:"])
def test_what_is_no_url_is_refused_and_not_repeated(text: str, monkeypatch) -> None:
    monkeypatch.setenv("MODELS_REMOTE", text)
    with pytest.raises(CatalogError, match="expected a URL") as refused:
        settings({})
    assert "secret" not in str(refused.value)


def test_credentials_are_used_and_never_logged(tmp_path: Path, caplog) -> None:
    caplog.set_level(logging.DEBUG)
    with bazel() as url:
        machine = Machine(tmp_path / "one", Settings(url))
        machine.build()
        assert machine.end() == ()
        wrong = Machine(tmp_path / "two", Settings(url.replace("p%40ss", "wr0ng")))
        wrong.build("pkl:two", {"artifact": b"two"})
        (line,) = wrong.end()
    assert "401" in line
    said = caplog.text + line
    assert "/cas/" in said
    assert not [secret for secret in ("p%40ss", "p@ss", "wr0ng", Bazel.login) if secret in said]


def test_an_idle_remote_store_loads_no_network_package(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from rules.workspace import Workspace\n"
        "from rules.keeping.remote import Remote, Settings\n"
        "for url in ('http://127.0.0.1:1', 'file:///nowhere'):\n"
        "    assert Remote(Settings(url), Workspace(Path(sys.argv[1])).store).close() == ()\n"
        "print([name for name in ('httpx', 'fsspec', 'paramiko', 'ssl') if name in sys.modules])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert run.stdout == "[]\n"


# ---- the form of a result

NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="/\\:"), min_size=1, max_size=30
)
DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
BLOBS = st.builds(Blob, NAMES.map("m{}.bin".format), DIGESTS, st.integers(0, 2**62))
JSONS = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)
ENTRIES = st.builds(
    Entry,
    st.lists(BLOBS, max_size=5, unique_by=lambda one: one.name).map(tuple),
    st.dictionaries(st.text(), JSONS, max_size=3),
    st.text(),
    st.text(),
)


@given(ENTRIES)
def test_an_entry_comes_back_as_it_was(one: Entry) -> None:
    assert decoded(encoded(one)) == one


@given(ENTRIES, st.data())
def test_no_damage_gets_a_name_out_of_its_folder(one: Entry, data) -> None:
    content = bytearray(encoded(one))
    for _ in range(data.draw(st.integers(0, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Poisoned):
        for output in decoded(bytes(content)).outputs:
            assert (Path("/folder") / output.name).resolve().parent == Path("/folder")
            assert len(output.sha256) == 64


@given(st.binary())
def test_any_other_bytes_are_poison(content: bytes) -> None:
    with pytest.raises(Poisoned):
        decoded(content)
