"""Sources made here from a seed: driving models with the true contract, byte-identical on every machine."""

from collections.abc import Mapping
from pathlib import Path

from rules.errors import SourceError
from rules.keeping.digests import sha256_of
from rules.keys import Content

GENERATORS = ("architectures.py", "generated.py")
LOADED: dict[str, str] = {}  # digests of the generator as this process imported it


def files(options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
    """The generator's own code decides the bytes."""
    return {name: Path(__file__).with_name(name) for name in GENERATORS}


def identity(options: Mapping[str, object]) -> Content:
    """Architecture, seed and width."""
    return {name: options[name] for name in ("architecture", "seed", "width")}


def _check_code() -> None:
    """The code in memory is the code whose digest the key holds, or the files would be made by another."""
    if not LOADED:
        LOADED.update({name: sha256_of(Path(__file__).with_name(name)) for name in GENERATORS})
    if any(sha256_of(Path(__file__).with_name(name)) != known for name, known in LOADED.items()):
        raise SourceError("the generator of models changed during this run", fix="run doit again")


def fetch(options: Mapping[str, object], base: Path, scratch: Path, *, cache: Path) -> dict[str, Path]:
    """Generate the model's files."""
    from rules.sources.generated import generate

    _check_code()
    made = generate(
        str(options["architecture"]), seed=int(str(options["seed"])), width=int(str(options["width"]))
    )
    fetched = {}
    for role, content in made.items():
        fetched[role] = scratch / f"{role}.onnx"
        fetched[role].write_bytes(content)
    return fetched
