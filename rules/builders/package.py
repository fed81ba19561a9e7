"""The worker as one file: a zipapp whose bytes depend on the worker's sources alone."""

import io
import zipfile
from pathlib import Path

from rules.keeping.digests import Digests
from rules.keeping.files import write_bytes
from rules.keys import key_of

WORKER = Path(__file__).parent.parent / "worker"
ENTRY = "__main__.py"
ALL = "**/*.py"
EPOCH = (1980, 1, 1, 0, 0, 0)


def sources(pattern: str) -> list[Path]:
    """The worker's modules, sorted; `*.py` are those that a compile runs, `**/*.py` are all."""
    return sorted(path for path in WORKER.glob(pattern) if not path.name.startswith("._"))


def digest(digests: Digests, pattern: str = "*.py") -> str:
    """One sha256 over sources; for build keys those of a compile, which the replay's do not touch."""
    found = {path.relative_to(WORKER).as_posix(): digests.of(path).sha256 for path in sources(pattern)}
    return key_of(found)


def packed(folder: Path, digests: Digests) -> Path:
    """The zipapp in `folder`, named by its digest; made when it is not there yet."""
    final = folder / f"worker-{digest(digests, ALL)[:16]}.pyz"
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for path in sources(ALL):
            name = ENTRY if path.name == ENTRY else f"worker/{path.relative_to(WORKER).as_posix()}"
            archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes())
    # Its name is no proof of its bytes, and the key vouches for them.
    if not final.exists() or final.read_bytes() != content.getvalue():
        write_bytes(final, content.getvalue())
    return final
