"""The worker as one file: a zipapp whose bytes depend on the worker's sources alone."""

import hashlib
import io
import zipfile
from pathlib import Path

from rules.errors import SourceError
from rules.keeping import files
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


def packed(folder: Path, expected: str) -> Path:
    """The zipapp in `folder`; `expected` is the digest of the modules that a compile runs.

    It is packed from bytes that are checked, so that a module edited meanwhile cannot slip in. Raises
    SourceError when the sources are not those of `expected` any more.
    """
    content = {path.relative_to(WORKER).as_posix(): path.read_bytes() for path in sources(ALL)}
    sums = {name: hashlib.sha256(one).hexdigest() for name, one in content.items()}
    if key_of({name: one for name, one in sums.items() if "/" not in name}) != expected:
        raise SourceError(f"{WORKER}: it changed while a compile was about to use it", fix="run doit again")
    packing = io.BytesIO()
    with zipfile.ZipFile(packing, "w") as archive:
        for name, one in content.items():
            archive.writestr(zipfile.ZipInfo(name if name == ENTRY else f"worker/{name}", EPOCH), one)
    final = folder / f"worker-{key_of(sums)[:16]}.pyz"
    # Its name is no proof of its bytes, and the key vouches for them.
    if not final.exists() or files.read(final) != packing.getvalue():
        write_bytes(final, packing.getvalue())
    return final
