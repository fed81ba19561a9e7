"""Sources made here from a seed: driving models with the true contract, byte-identical on every machine."""

from collections.abc import Mapping
from pathlib import Path

from rules.keys import Content

GENERATORS = ("architectures.py", "generated.py")


def files(options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
    """The generator's own code decides the bytes."""
    return {name: Path(__file__).with_name(name) for name in GENERATORS}


def identity(options: Mapping[str, object]) -> Content:
    """Architecture, seed and width."""
    return {name: options[name] for name in ("architecture", "seed", "width")}


def fetch(options: Mapping[str, object], base: Path, scratch: Path, *, cache: Path) -> dict[str, Path]:
    """Generate the model's files."""
    from rules.sources.generated import generate

    made = generate(
        str(options["architecture"]), seed=int(str(options["seed"])), width=int(str(options["width"]))
    )
    fetched = {}
    for role, content in made.items():
        fetched[role] = scratch / f"{role}.onnx"
        fetched[role].write_bytes(content)
    return fetched
