"""Sources in an archive: a zip, a tar, a folder or one ONNX file, at a URL or path, pinned by its bytes.

A member is read from the archive straight into the file of its role, so no name in it can lead elsewhere.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import tarfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from rules.errors import SourceError, fills
from rules.keeping.digests import CHUNK, Digest, sha256_of
from rules.keeping.files import opened
from rules.keys import Content
from rules.sources import beside, chunks, space
from rules.sources.download import download, wrong
from rules.sources.local import GENERIC, role_of
from rules.steps.preflight import MONITORING, POLICIES, SUPERCOMBO, VISION
from rules.url import Url

ROLES_OF: dict[str, tuple[str, ...]] = {
    "split": (VISION, *sorted(POLICIES)),
    "supercombo": (SUPERCOMBO,),
    "dmonitoring": (MONITORING,),
    GENERIC: ("model",),
}
DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    NotImplementedError,  # a way of compressing that zipfile does not know
    RuntimeError,  # an encrypted zip
    gzip.BadGzipFile,
)

COMPRESSED: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.GzipFile,
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\0": lzma.LZMAFile,
    b"\x5d\0\0": lzma.LZMAFile,
}
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # asked for at the start: a tar may end in a zip

MOST_MEMBERS = 100_000
MOST_AT_ONCE = 64 << 20  # bytes that one read may ask for: a tar's own headers say how long they are


class Member(NamedTuple):
    """A file in an archive: its size in bytes as the archive declares it, and how to open it."""

    size: int
    open: Callable[[], IO[bytes] | None]


Members = Mapping[str, Member]


def files(options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
    """No local file: the pin says it all, wherever the archive lies."""
    return {}


def identity(options: Mapping[str, Any]) -> Content:
    """The archive's digest and what is taken from it; not where it lies."""
    chosen = {"members": dict(sorted(options["members"].items()))} if "members" in options else {}
    return {"sha256": options["sha256"], "format": options["format"], **chosen}


def fetch(options: Mapping[str, Any], base: Path, scratch: Path, *, cache: Path) -> dict[str, Path]:
    """The ONNX files by role, in `scratch`; `base` is what a relative `path` starts from.

    A broken download waits in `cache` for the next attempt, of this run or a later one.
    Raises SourceError for an archive that is not as pinned, is damaged, or does not hold the files.
    """
    expected = Digest(options["sha256"], options["size"])
    local = local_path(options, base)
    shown = str(local) if local else str(Url.of(options["url"]))
    if local and local.is_dir():
        found = folder_digest(local)
        if found != expected:
            raise wrong(shown, expected, found)
        return _extracted(options, _in_folder(local), shown, scratch)
    whole = scratch / "archive"
    if local:
        _copy(local, expected, whole)
    else:
        download(options["url"], expected, whole, cache / f"{expected.sha256}.partial")
    with _opened(whole, _file_name(options), shown) as openers:
        fetched = _extracted(options, openers, shown, scratch)
    whole.unlink()
    return fetched


def local_path(options: Mapping[str, Any], base: Path) -> Path | None:
    """Where on this machine the archive is: `path`, or a `file://` URL; None for any other URL."""
    if "path" in options:
        return base / str(options["path"])
    parts = urlsplit(str(options["url"]))
    return Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None


def folder_digest(folder: Path) -> Digest:
    """What pins a folder: the sha256 of its listing as `sha256sum` prints it, and the bytes of all its files.

    Only `.onnx` files count, at any depth, by path with `/`, in byte order, and the files that those keep
    their weights in; where there are none of these:
    `find . -name '*.onnx' ! -name '._*' -printf '%P\\n' | LC_ALL=C sort | xargs sha256sum | sha256sum`.
    """
    lines, size = [], 0
    for name in sorted(_names(folder), key=str.encode):
        path = folder / name
        lines.append(f"{sha256_of(path)}  {name}\n")
        size += path.stat().st_size
    return Digest(hashlib.sha256("".join(lines).encode()).hexdigest(), size)


def _onnx_names(folder: Path) -> list[str]:
    paths = [path for path in folder.rglob("*.onnx*") if path.is_file()]
    return sorted(name for path in paths if _is_onnx(name := path.relative_to(folder).as_posix()))


def _is_onnx(name: str) -> bool:
    """Whether a member is an ONNX file, or a piece of one in chunks."""
    return chunks.whole_of(name).endswith(".onnx") and not PurePosixPath(name).name.startswith("._")


def _names(folder: Path) -> set[str]:
    """ONNX files, and what they keep outside of themselves as far as it is there."""
    found = set(_onnx_names(folder))
    for name in sorted(found):
        place = (folder / name).parent
        found |= {
            (place / one).relative_to(folder).as_posix()
            for one in beside.named(folder / name)
            if beside.is_there(place, one)
        }
    return found


def _copy(source: Path, expected: Digest, final: Path) -> None:
    """Copy and check in one pass: what is unpacked later is what was checked."""
    total, size = hashlib.sha256(), 0
    with _source(source) as reader, final.open("xb") as writer:
        while chunk := reader.read(CHUNK):
            total.update(chunk)
            size += len(chunk)
            writer.write(chunk)
    found = Digest(total.hexdigest(), size)
    if found != expected:
        raise wrong(str(source), expected, found)


def _source(path: Path) -> IO[bytes]:
    try:
        return opened(path)
    except OSError as error:
        raise SourceError(
            f"{path}: cannot be read: {error.strerror}", fix="correct the source's path or url in models.toml"
        ) from None


def _file_name(options: Mapping[str, Any]) -> str:
    place = str(options["path"]) if "path" in options else unquote(urlsplit(str(options["url"])).path)
    return PurePosixPath(place).name


# ---- what is inside: member name → how to open it


@contextmanager
def _opened(whole: Path, name: str, shown: str) -> Iterator[Members]:
    try:
        if name.endswith(".onnx"):
            yield {name: Member(whole.stat().st_size, partial(_bytes, whole))}
        elif _head(whole).startswith(ZIP):
            with zipfile.ZipFile(whole) as archive:
                files = [one for one in archive.infolist() if not one.is_dir()]
                yield {one.filename: Member(one.file_size, partial(archive.open, one)) for one in files}
        else:
            with _plain(whole) as plain, tarfile.open(fileobj=_Measured(plain), mode="r:") as tar:
                yield {one.name: Member(one.size, partial(tar.extractfile, one)) for one in _listed(tar)}
    except DAMAGE as error:
        if fills(error):
            raise
        raise SourceError(
            f"{shown}: cannot be unpacked: {error}",
            fix="expected a zip, a tar (plain, .gz, .bz2 or .xz) or one .onnx file: pack it again",
        ) from None


def _plain(path: Path) -> IO[bytes]:
    """A tar as it is without compression."""
    head = _head(path)
    for magic, opener in COMPRESSED.items():
        if head.startswith(magic):
            plain: IO[bytes] = opener(path)
            return plain
    return _bytes(path)


class _Measured(io.RawIOBase):
    """A stream that gives no more at once than a header may have."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size:,} bytes")
        try:
            return self._stream.read(size)
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise tarfile.ReadError(str(error)) from None

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()


def _listed(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    total = 0
    for number, one in enumerate(tar):
        total += one.size
        if number >= MOST_MEMBERS or total > space.LARGEST:
            raise tarfile.ReadError("more members, or larger ones, than any model has")
        if one.isfile():
            yield one


def _head(path: Path) -> bytes:
    with opened(path) as file:
        return file.read(6)


def _bytes(path: Path) -> IO[bytes]:
    return opened(path)


def _in_folder(folder: Path) -> Members:
    names = sorted(_names(folder))
    return {name: Member((folder / name).stat().st_size, partial(_bytes, folder / name)) for name in names}


def _extracted(options: Mapping[str, Any], openers: Members, shown: str, scratch: Path) -> dict[str, Path]:
    for name in sorted(openers):
        _check_name(name, shown)
    members = {name.removeprefix("./"): member for name, member in openers.items()}
    onnx = [name for name in sorted(members) if _is_onnx(name)]
    fetched, around = {}, beside.Beside(scratch)

    def bring(name: str, final: Path) -> None:
        _take(members, name, final, shown)

    for role, name in _chosen(options, chunks.wholes(onnx), shown).items():
        fetched[role] = scratch / f"{role}.onnx"
        if pieces := chunks.chunked(name, onnx):
            chunks.join(pieces, bring, fetched[role])
        else:
            bring(name, fetched[role])
        folder = PurePosixPath(name).parent

        def take(location: str, final: Path, folder: PurePosixPath = folder) -> None:
            _take(members, str(folder / location), final, shown)

        around.bring(fetched[role], str(folder), take)
    return fetched | around.files


def _take(members: Members, name: str, final: Path, shown: str) -> None:
    if name not in members:  # an ONNX file that is asked for is one of them
        raise beside.missing(name, shown)
    if lacking := space.lacking(final.parent, members[name].size):
        raise SourceError(f"{shown}: {name}: {lacking}", fix="free some space there, or name another archive")
    _unpack(members[name], final)


def _unpack(member: Member, final: Path) -> None:
    reader = member.open()
    assert reader is not None  # tarfile's answer for what is no file; those are not among the openers
    left = member.size
    with reader, final.open("xb") as writer:
        while chunk := reader.read(CHUNK):
            left -= len(chunk)
            writer.write(chunk)
            if left < 0:
                break
    if left:
        raise zipfile.BadZipFile(f"{final.name} has not the {member.size:,} bytes that are declared")


def _check_name(name: str, shown: str) -> None:
    if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
        raise SourceError(
            f"{shown}: expected members inside the archive, got {name!r}",
            fix="pack it again without such names",
        )


def _chosen(options: Mapping[str, Any], names: Iterable[str], shown: str) -> dict[str, str]:
    """Member by role: as `members` says, else as the file names say."""
    listed = ", ".join(names) or "none"
    if "members" in options:
        wanted: dict[str, str] = dict(sorted(options["members"].items()))
        for asked, member in wanted.items():
            if member not in names:
                raise SourceError(f"{shown}: no member {member} for {asked}", fix=f"its ONNX files: {listed}")
        return wanted
    roles = ROLES_OF[options["format"]]
    chosen: dict[str, str] = {}
    for name in names:
        role = role_of(Path(name), options["format"])
        if role is None or role not in roles or _is_big(name, role):
            continue
        if role in chosen:
            raise SourceError(
                f"{shown}: both {chosen[role]} and {name} are a {role}",
                fix=f'write members = {{ {role} = "…" }} with the one to take, and all others that it needs',
            )
        chosen[role] = name
    if not chosen:
        raise SourceError(
            f"{shown}: expected {' or '.join(f'{role}.onnx' for role in roles)}, got {listed}",
            fix=f'if one of these is right, write members = {{ {roles[0]} = "…" }}',
        )
    return chosen


def _is_big(name: str, role: str) -> bool:
    """Whether it is the variant for an external GPU, which is taken only when `members` names it."""
    stem = PurePosixPath(name).stem
    return stem == f"big_{role}" or stem.endswith(f"_big_{role}")
