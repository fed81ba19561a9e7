"""The whole file from its pieces, by whichever name the user has at hand.

The pieces are `.pNN` parts with a `.sha256`, or `.chunkNNofMM` chunks with a `.chunkmanifest`, their count.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from rules.errors import ArtifactError, WorkspaceError
from rules.inspection.container import chunks_of
from rules.inspection.whole import Damage
from rules.releasing import parts

_PIECE = re.compile(r"(?P<whole>.+)\.(?P<kind>p\d\d|sha256|chunkmanifest|chunk\d\dof\d\d)")


@dataclass(frozen=True)
class Joined:
    """The whole file and its sha256 (hex); `checked` when a file beside the pieces said what that must be."""

    path: Path
    sha256: str
    checked: bool = True


def join(named: Path, output: Path | None = None) -> Joined:
    """Put together what `named` stands for: the whole file's name, a part, a chunk, a checksum, or a marker.

    The result is `output`, or the whole file's name beside its parts. Raises ArtifactError where both forms,
    neither or not all of one is there, or the bytes are wrong; WorkspaceError for a place it cannot take.
    """
    whole, chunked = _form(named)
    checksum = _beside(whole, "sha256")
    if chunked:
        return _from_chunks(whole, checksum, output)
    if not checksum.exists():
        raise ArtifactError(
            f"{checksum}: expected the checksum of {whole.name}, got nothing",
            fix=f"fetch it into {whole.absolute().parent}, then doit join {checksum}",
        )
    made = parts.join(checksum, output)
    return Joined(made, parts.read_checksum(checksum)[0])


def _form(named: Path) -> tuple[Path, bool]:
    """The whole file's path, and whether it lies there in chunks."""
    if named.is_dir():
        raise ArtifactError(f"{named}: expected a file to join, got a folder", fix=f"doit join {named}/FILE")
    match = None if _beside(named, "sha256").exists() else _PIECE.fullmatch(named.name)
    whole = named.with_name(match["whole"]) if match else named
    if match and match["kind"] != "sha256":
        return whole, match["kind"].startswith("chunk")
    in_chunks = _beside(whole, "chunkmanifest").exists()
    if in_chunks and _beside(whole, "p00").exists():
        raise ArtifactError(
            f"{whole}: both parts and chunks of it are there, expected one form",
            fix=f"doit join {whole}.p00, or doit join {whole}.chunkmanifest",
        )
    if not match and not in_chunks and not any(_beside(whole, end).exists() for end in ("sha256", "p00")):
        found = "only the whole file" if whole.exists() else "nothing"
        raise ArtifactError(
            f"{whole}: expected {whole.name}.sha256 or {whole.name}.chunkmanifest beside it, got {found}",
            fix="check the path, or fetch the pieces",
        )
    return whole, in_chunks


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(f"{path.name}.{ending}")


def _from_chunks(whole: Path, checksum: Path, output: Path | None) -> Joined:
    try:
        sources = chunks_of(whole)
    except Damage as damage:
        raise ArtifactError(f"{whole}: {damage.what}", fix="fetch it into the same folder") from None
    if output is None or _beside(output, "chunkmanifest").exists():
        raise WorkspaceError(
            f"{whole}: beside its chunks a whole file would be shadowed by {whole.name}.chunkmanifest",
            fix=f"name another folder: doit join {whole}.chunkmanifest --output FOLDER/{whole.name}",
        )
    if output.is_dir():
        raise WorkspaceError(f"{output}: expected a file name, got a folder", fix="add a file name")
    expected = parts.read_checksum(checksum)[0] if checksum.exists() else None

    def judge(got: str) -> None:
        if expected not in (None, got):
            raise ArtifactError(
                f"{checksum}: wrong sha256 over {whole.name}'s chunks: expected {expected}, got {got}",
                fix="fetch the chunks and the checksum again",
            )

    sha256 = parts.gather(sources, output, judge)
    return Joined(output, sha256, expected is not None)
