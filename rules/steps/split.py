"""verified → parts: a file that is too large for a repository, in pieces that are not."""

from pathlib import Path

from rules.releasing import parts
from rules.step import Made


def split(artifact: Path, scratch: Path) -> Made:
    """The parts of an artifact, and its checksum last; nothing for a file that is taken whole.

    Parts do not depend on the artifact's name, so a release renames them without splitting again.
    """
    size = artifact.stat().st_size
    if not parts.needs_parts(size):
        return Made({}, {"size": size})
    made = parts.split(artifact, scratch / "parts")
    outputs: dict[str, Path | str] = {path.name.removeprefix(artifact.name): path for path in made.parts}
    outputs[".sha256"] = made.checksum
    return Made(outputs, {"size": made.size, "sha256": made.sha256})
