"""A real local HTTP server for tests: files at paths, and the ways in which servers fail."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server(ThreadingHTTPServer):
    """Serves `files` (path → bytes) with ranges; each entry of `faults` (path → list) spoils one answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.faults: dict[str, list[Callable[[Handler], None]]] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        return

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, path, headers))
        if self.server.faults.get(path) and body:
            self.server.faults[path].pop(0)(self)
            return
        content = self.server.files.get(path)
        if content is None:
            self.status(404, self.server.headers.get(path, {}))
            return
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        if start >= len(content) > 0:
            self.status(416)
            return
        self.send_response(206 if "Range" in self.headers else 200)
        if "Range" in self.headers:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        for name, value in self.server.headers.get(path, {}).items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(content[start:])

    def status(self, code: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


def status(code: int, **headers: str) -> Callable[[Handler], None]:
    """An answer without a body; `Retry_After` is sent as Retry-After."""
    return lambda handler: handler.status(
        code, {name.replace("_", "-"): one for name, one in headers.items()}
    )


def drop_after(count: int) -> Callable[[Handler], None]:
    """Promise the whole file, send `count` bytes from where it was asked, and hang up."""

    def fault(handler: Handler) -> None:
        content = handler.server.files[handler.path.partition("?")[0]]
        start = int((handler.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start : start + count])
        handler.wfile.flush()
        handler.close_connection = True

    return fault


@contextmanager
def serving() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
