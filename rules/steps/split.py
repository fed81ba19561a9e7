"""verified → parts: a file that is too large for a repository, in pieces that are not."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rules.errors import ArtifactError
from rules.keeping.digests import Digest
from rules.releasing import parts
from rules.step import Made

CHECKSUM = ".sha256"


def split(artifact: Path, scratch: Path) -> Made:
    """The parts of an artifact, and its checksum last; nothing for a file that is taken whole.

    Parts do not depend on the artifact's name, so a release renames them without splitting again.
    """
    size = artifact.stat().st_size
    if not parts.needs_parts(size):
        return Made({}, {"size": size})
    made = parts.split(artifact, scratch / "parts")
    outputs: dict[str, Path | str] = {path.name.removeprefix(artifact.name): path for path in made.parts}
    outputs[CHECKSUM] = made.checksum
    return Made(outputs, {"size": made.size, "sha256": made.sha256})


def check(name: str, whole: Digest, found: Mapping[str, Path]) -> dict[str, Any]:
    """Facts of the parts of the artifact `name`, by name as `split` makes them.

    Raises ArtifactError unless they are `whole` cut where it is to be cut, and the checksum says so.
    """
    if not parts.needs_parts(whole.size):
        _require(not found, name, "no parts", ", ".join(found))
        return {"size": whole.size}
    names = [one.removeprefix(name) for one in parts.part_names(name, whole.size)]
    _require({*found} == {*names, CHECKSUM}, name, f"parts to {names[-1]}", ", ".join(sorted(found)))
    for part in names[:-1]:
        size = found[part].stat().st_size
        _require(size == parts.PART_SIZE, name, f"{part} of {parts.PART_SIZE:,} bytes", f"{size:,}")
    joined = parts.digest(found[part] for part in names)
    _require(joined == whole, name, f"parts that make {whole.sha256}", joined[0])
    line = f"{whole.sha256}  {name}\n".encode()
    size = found[CHECKSUM].stat().st_size
    _require(size == len(line) and found[CHECKSUM].read_bytes() == line, name, "its checksum", "another")
    return {"size": whole.size, "sha256": whole.sha256}


def _require(fine: bool, name: str, wanted: str, got: str) -> None:
    if not fine:
        raise ArtifactError(f"{name}: expected {wanted}, got {got:.200}", fix="doit split it again")
