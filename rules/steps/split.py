"""verified → parts: an artifact in pieces that a repository takes, and the checksum that a client checks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rules.errors import ArtifactError
from rules.keeping.digests import Digest
from rules.releasing import parts
from rules.step import Made

CHECKSUM = ".sha256"
ALWAYS, LARGE = "always", "large"  # which artifacts a release has in parts


def is_split(size: int, rule: str) -> bool:
    """Whether a release whose `parts` is `rule` has an artifact of `size` bytes in parts."""
    return rule == ALWAYS or parts.needs_parts(size)


def split(artifact: Path, whole: Digest, rule: str, scratch: Path) -> Made:
    """The parts of an artifact that is `whole`, and its checksum last; nothing for one that is taken whole.

    Parts do not depend on the artifact's name, so a release renames them without splitting again. An only
    part is the artifact itself, and is linked.
    """
    if not is_split(whole.size, rule):
        return Made({}, {"size": whole.size})
    if len(names := parts.part_names("", whole.size)) == 1:
        checksum = scratch / CHECKSUM
        checksum.write_bytes(parts.checksum_line(whole.sha256, artifact.name))
        return Made({names[0]: whole.sha256, CHECKSUM: checksum}, whole._asdict())
    made = parts.split(artifact, scratch / "parts", force=True)
    outputs: dict[str, Path | str] = {path.name.removeprefix(artifact.name): path for path in made.parts}
    outputs[CHECKSUM] = made.checksum
    return Made(outputs, {"size": made.size, "sha256": made.sha256})


def check(name: str, whole: Digest, rule: str, found: Mapping[str, Path]) -> dict[str, Any]:
    """Facts of the parts of the artifact `name`, by name as `split` makes them.

    Raises ArtifactError unless they are `whole` cut where it is to be cut, and the checksum says so.
    """
    if not is_split(whole.size, rule):
        _require(not found, name, "no parts", ", ".join(found))
        return {"size": whole.size}
    names = [one.removeprefix(name) for one in parts.part_names(name, whole.size)]
    _require({*found} == {*names, CHECKSUM}, name, f"parts to {names[-1]}", ", ".join(sorted(found)))
    for part in names[:-1]:
        size = found[part].stat().st_size
        _require(size == parts.PART_SIZE, name, f"{part} of {parts.PART_SIZE:,} bytes", f"{size:,}")
    joined = parts.digest(found[part] for part in names)
    _require(joined == whole, name, f"parts that make {whole.sha256}", joined[0])
    line = parts.checksum_line(whole.sha256, name)
    size = found[CHECKSUM].stat().st_size
    _require(size == len(line) and found[CHECKSUM].read_bytes() == line, name, "its checksum", "another")
    return {"size": whole.size, "sha256": whole.sha256}


def _require(fine: bool, name: str, wanted: str, got: str) -> None:
    if not fine:
        raise ArtifactError(f"{name}: expected {wanted}, got {got:.200}", fix="doit split it again")
