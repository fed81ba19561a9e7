"""Where a file differs from the bytes that were recorded, as long as the store still holds those."""

from pathlib import Path

from rules.counting import counted
from rules.decide import Decision
from rules.keeping import blocks, files
from rules.keeping.digests import CHUNK, Digest, Digests
from rules.keeping.records import Output
from rules.workspace import Workspace

SHOWN = 3  # ranges in a sentence
ENOUGH = 100  # ranges looked for: a file of other bytes altogether is not listed byte by byte

Range = tuple[int, int]  # offsets of the first and the last byte


def sentences(decision: Decision, workspace: Workspace) -> list[str]:
    """One sentence for each recorded output that is there and is not what was recorded."""
    found = []
    for output in decision.record.outputs if decision.record else ():
        try:
            digest = workspace.digests.of(workspace.path(output.path))
        except OSError:
            continue  # missing: the reason says so already
        if digest != Digest(output.sha256, output.size):
            found.append(f"{output.path}: {described(output, digest, workspace)}")
    return found


def described(output: Output, digest: Digest, workspace: Workspace) -> str:
    """How a damaged output, whose bytes have `digest` now, differs from what was recorded."""
    blob = workspace.store.path_of(output.sha256)
    if intact(blob, output.sha256, workspace.digests):
        return difference(workspace.path(output.path), blob)
    told = f"sha256 {digest.sha256[:12]}… where {output.sha256[:12]}… was recorded"
    if digest.size != output.size:
        told = f"{counted(digest.size, 'byte')} where {output.size:,} were recorded"
    elif ranges := blocks.differing(workspace.path(output.path), workspace.store.blocks_of(output.sha256)):
        told = f"damage within {_listed(ranges).removesuffix(' differ')}"
    return f"{told}; the store has lost the right bytes too"


def intact(blob: Path, sha256: str, digests: Digests) -> bool:
    """Whether the store's bytes are those of their name."""
    try:
        return digests.of(blob).sha256 == sha256
    except OSError:
        return False


def difference(path: Path, right: Path) -> str:
    """Which bytes of `path` are not those of `right`: `bytes 4096–4098 differ`, offsets from 0."""
    ranges, common = _ranges(path, right)
    told = [_listed(ranges)] if ranges else []
    size, recorded = path.stat().st_size, right.stat().st_size
    if size != recorded:
        told.append(f"{counted(size, 'byte')} where {recorded:,} were recorded, alike up to byte {common}")
    return "; ".join(told)


def _listed(ranges: list[Range]) -> str:
    spans = [str(first) if first == last else f"{first}–{last}" for first, last in ranges[:SHOWN]]
    if ranges[0][0] == ranges[-1][1]:
        return f"byte {spans[0]} differs"
    more = len(ranges) - SHOWN
    over = "over " if len(ranges) == ENOUGH else ""
    rest = f" and {over}{counted(more, 'more range')}" if more > 0 else ""
    return f"bytes {', '.join(spans)}{rest} differ"


def _ranges(path: Path, right: Path) -> tuple[list[Range], int]:
    """Ranges of differing bytes in the common length, and the length of the common start."""
    ranges: list[Range] = []
    offset = 0
    with files.opened(path) as one, files.opened(right) as other:
        while len(ranges) < ENOUGH and (a := one.read(CHUNK)) and (b := other.read(CHUNK)):
            length = min(len(a), len(b))
            if a[:length] != b[:length]:
                _extend(ranges, offset, a[:length], b[:length])
            offset += length
    return ranges[:ENOUGH], ranges[0][0] if ranges else offset


def _extend(ranges: list[Range], offset: int, a: bytes, b: bytes) -> None:
    for index, (x, y) in enumerate(zip(a, b, strict=True), offset):
        if x == y:
            continue
        if ranges and ranges[-1][1] == index - 1:
            ranges[-1] = (ranges[-1][0], index)
        elif len(ranges) == ENOUGH:
            return
        else:
            ranges.append((index, index))
