"""A Git LFS server on 127.0.0.1 that follows the batch API, except where a test tells it to misbehave."""

import base64
import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Fault:
    """What one answer is instead of the right one: another status, another body, a broken connection."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    drop_after: int | None = None  # bytes of the body that are sent before the connection is cut
    unsized: bool = False  # no Content-Length: the end of the connection ends the body


@dataclass
class Seen:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class LfsServer:
    """Objects by oid; `batch` and `get` hold the faults of the next requests of each kind, in order."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.batch: list[Fault] = []
        self.get: list[Fault] = []
        self.seen: list[Seen] = []
        self.login: tuple[str, str] | None = None
        self.resumes = True
        self.says_size: int | None = None
        self.signature = ""  # a query that every download needs, as a presigned URL has
        self.signing = False  # downloads carry a header that opens them, so that no login is asked for
        self._httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self._httpd.server_port}"

    @property
    def url(self) -> str:
        """What lfs.url would say."""
        return f"{self.origin}/repo.git/info/lfs"

    def add(self, content: bytes) -> str:
        oid = hashlib.sha256(content).hexdigest()
        self.objects[oid] = content
        return oid

    def count(self, method: str) -> int:
        return sum(one.method == method for one in self.seen)

    def ranges(self) -> list[str | None]:
        """The Range header of each download, in order."""
        return [one.headers.get("range") for one in self.seen if one.method == "GET"]

    @contextlib.contextmanager
    def running(self) -> Iterator["LfsServer"]:
        thread = threading.Thread(target=self._httpd.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield self
        finally:
            self._httpd.shutdown()
            thread.join()
            self._httpd.server_close()

    def allows(self, seen: Seen) -> bool:
        if self.login is None or (self.signing and seen.headers.get("x-signed") == "yes"):
            return True
        text = base64.b64encode(":".join(self.login).encode()).decode()
        return seen.headers.get("authorization") == f"Basic {text}"

    def answer(self, seen: Seen) -> Fault:
        """The answer to a request: a fault that waits for it, else what the API asks for."""
        if not self.allows(seen):
            return Fault(401, {"LFS-Authenticate": 'Basic realm="lfs"'}, b"{}")
        waiting = self.batch if seen.method == "POST" else self.get
        fault = waiting.pop(0) if waiting else Fault()
        if fault.body is None and fault.status < 300:
            fault = self._right(seen, fault)
        return fault

    def _right(self, seen: Seen, fault: Fault) -> Fault:
        if seen.method == "POST":
            return Fault(200, fault.headers, self._batch(seen), fault.drop_after, fault.unsized)
        path, _, query = seen.path.partition("?")
        content = self.objects.get(path.rpartition("/")[2])
        if content is None or query != self.signature:
            return Fault(404, {}, b"")
        asked = seen.headers.get("range", "")
        if not asked or not self.resumes:
            return Fault(200, fault.headers, content, fault.drop_after, fault.unsized)
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(content):
            return Fault(416, {"Content-Range": f"bytes */{len(content)}"}, b"")
        span = f"bytes {start}-{len(content) - 1}/{len(content)}"
        headers = {"Content-Range": span, **fault.headers}
        return Fault(206, headers, content[start:], fault.drop_after, fault.unsized)

    def _batch(self, seen: Seen) -> bytes:
        request = json.loads(seen.body)
        assert request["operation"] == "download"
        assert seen.headers["content-type"] == seen.headers["accept"] == "application/vnd.git-lfs+json"
        answers = [self._offer(one) for one in request["objects"]]
        return json.dumps({"transfer": "basic", "objects": answers}).encode()

    def _offer(self, one: dict[str, object]) -> dict[str, object]:
        oid = str(one["oid"])
        if oid not in self.objects:
            return {**one, "error": {"code": 404, "message": "Object does not exist"}}
        size = len(self.objects[oid]) if self.says_size is None else self.says_size
        href = f"{self.origin}/objects/{oid}" + (f"?{self.signature}" if self.signature else "")
        header = {"X-Signed": "yes"} if self.signing else {}
        return {"oid": oid, "size": size, "actions": {"download": {"href": href, "header": header}}}

    def _handler(server) -> type[http.server.BaseHTTPRequestHandler]:
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._reply(b"")

            def do_POST(self) -> None:
                self._reply(self.rfile.read(int(self.headers["Content-Length"])))

            def _reply(self, body: bytes) -> None:
                headers = {name.lower(): value for name, value in self.headers.items()}
                seen = Seen(self.command, self.path, headers, body)
                server.seen.append(seen)
                self._send(server.answer(seen))

            def _send(self, answer: Fault) -> None:
                content = answer.body or b""
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if not answer.unsized and "Content-Length" not in answer.headers:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.close_connection = answer.unsized or answer.drop_after is not None
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(content[: answer.drop_after])

            def log_message(self, *_: object) -> None:
                pass

        return Handler
