"""A remote store behind any fsspec URL: a mounted folder, SFTP, S3, a model hub."""

import contextlib
import importlib
import secrets
import threading
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from rules.imports import alone
from rules.keeping.digests import CHUNK
from rules.keeping.files import TEMPORARY_PREFIX

BLOCK = 1 << 20  # s3fs would ask for 50 MB at a time, in which a slow line looks like a dead one
RENAMING = {
    "file",
    "local",
    "sftp",
    "ssh",
}  # here a half-written file shows; elsewhere an upload is all or nothing
SSH = ("sftp:", "ssh:")


class FsspecStore:
    """`<url>/cas/<sha256>` and `<url>/ac/<key>`; credentials as each file system takes them.

    Failures are whatever the file system raises: FileNotFoundError when there is no such thing, ImportError
    when the package for the URL's scheme is not installed.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._making = threading.Lock()

    @cached_property
    def _place(self) -> tuple[Any, str]:
        with alone:
            from fsspec.core import split_protocol, url_to_fs  # type: ignore[import-untyped, unused-ignore]
            from fsspec.registry import get_filesystem_class  # type: ignore[import-untyped, unused-ignore]

            get_filesystem_class(split_protocol(self._url)[0])  # imports it; to connect is not for alone
        options = {"host_key_policy": _known_hosts()} if self._url.startswith(SSH) else {}
        system, root = url_to_fs(self._url, **options)
        return system, root.rstrip("/")

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes under a name, in pieces."""
        system, root = self._connected()
        with system.open(f"{root}/{name}", "rb", block_size=BLOCK) as file:
            while piece := file.read(CHUNK):
                yield piece

    def size(self, name: str) -> int | None:
        """How many bytes are there under a name; None when there are none, or it does not tell."""
        system, root = self._connected()
        try:
            size: int | None = system.size(f"{root}/{name}")
        except FileNotFoundError:
            return None
        return size

    def write(self, name: str, content: Path | bytes) -> None:
        """Put bytes, or a file's, under a name: all of them or none."""
        system, root = self._connected()
        final = f"{root}/{name}"
        protocol = system.protocol
        if RENAMING.intersection([protocol] if isinstance(protocol, str) else protocol):
            _write_beside(system, final, content)
        else:
            _write(system, final, content)

    def _connected(self) -> tuple[Any, str]:
        with self._making:
            return self._place


def _write_beside(system: Any, final: str, content: Path | bytes) -> None:
    folder, _, name = final.rpartition("/")
    temporary = f"{folder}/{TEMPORARY_PREFIX}{secrets.token_hex(8)}-{name}"
    system.makedirs(folder, exist_ok=True)
    try:
        _write(system, temporary, content)
        system.mv(temporary, final)
    except BaseException:
        with contextlib.suppress(Exception):
            system.rm_file(temporary)
        raise


def _write(system: Any, final: str, content: Path | bytes) -> None:
    if isinstance(content, bytes):
        system.pipe_file(final, content)
    else:
        system.put_file(str(content), final)


def _known_hosts() -> Any:
    """A policy for fsspec's SFTP, which would otherwise take code from any host that answers."""
    paramiko: Any = importlib.import_module("paramiko")  # comes with fsspec[sftp], not with us

    class KnownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            file = Path("~/.ssh/known_hosts").expanduser()
            known = paramiko.HostKeys(str(file) if file.exists() else None)
            if not known.check(hostname, key):
                raise PermissionError(f"the {key.get_name()} key of {hostname} is not in {file}")

    return KnownHosts()
