"""The worker as one file: a zipapp whose bytes depend on the worker's sources alone."""

import zipfile
from pathlib import Path

from rules.keeping.digests import Digests
from rules.keeping.files import replacing
from rules.keys import key_of

WORKER = Path(__file__).parent.parent / "worker"
ENTRY = "__main__.py"
EPOCH = (1980, 1, 1, 0, 0, 0)


def sources() -> list[Path]:
    """The worker's modules, sorted."""
    return sorted(path for path in WORKER.glob("*.py") if not path.name.startswith("._"))


def digest(digests: Digests) -> str:
    """One sha256 over the worker's sources, for build keys."""
    return key_of({path.name: digests.of(path).sha256 for path in sources()})


def packed(folder: Path, digests: Digests) -> Path:
    """The zipapp in `folder`, named by its digest; made when it is not there yet."""
    final = folder / f"worker-{digest(digests)[:16]}.pyz"
    if not final.exists():
        with replacing(final) as file, zipfile.ZipFile(file, "w") as archive:
            for path in sources():
                name = ENTRY if path.name == ENTRY else f"worker/{path.name}"
                archive.writestr(zipfile.ZipInfo(name, EPOCH), path.read_bytes())
    return final
