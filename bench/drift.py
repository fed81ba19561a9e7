"""How much of its tolerance honest rounding uses: every generated architecture, compiled and verified.

    .venv/bin/python bench/drift.py [FLAGS [WIDTH [SEED …]]]

Prints, for the worst heads of all models, the error or the correlation that the reference gate saw, the group
that it saw it in, and the share of the limit. FLAGS is a flag set of the default catalog, `cpu` unless given;
`float32` is `cpu` with every network widened. What the gate refuses is not among the rows, but told above.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onnx

from rules.networks.reference import widened
from rules.sources.architectures import ARCHITECTURES
from rules.sources.generated import generate

ROOT = Path(__file__).resolve().parent.parent
DRIVING = sorted(name for name in ARCHITECTURES if name != "dmonitoring")
ROWS = 12


def catalog(folder: Path, flags: str, width: int, seeds: list[int]) -> None:
    """A project of a model for each architecture and seed, and of driver monitoring."""
    head = (ROOT / "models.toml").read_text().partition("# ---- models\n")[0]
    wide = flags == "float32"
    if wide:
        flags, head = "cpu", head.replace("FLOAT16 = 1\n", "").replace("tolerance = {", "# tolerance = {")
    settings = f'architecture = "dmonitoring", seed = {seeds[0]}, width = {width}'
    monitoring = f'[monitoring]\nflags = "{flags}"\nsource = {{ kind = "generated", {settings} }}\n'
    tables = [model(folder, name, seed, width, flags, wide) for name in DRIVING for seed in seeds]
    (folder / "models.toml").write_text(head + ("" if wide else monitoring) + "".join(tables))
    (folder / "dodo.py").write_text((ROOT / "dodo.py").read_text())


def model(folder: Path, architecture: str, seed: int, width: int, flags: str, wide: bool) -> str:
    """Write a model's ONNX files, float32 when `wide`; its table."""
    model_id = f"{architecture.replace('+', '-')}-{seed}"
    for role, content in generate(architecture, seed=seed, width=width).items():
        path = folder / "networks" / model_id / f"{role}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        network = onnx.load_from_string(content)
        if wide:
            widened(network)
        onnx.save(network, path)
    kind = architecture.partition("-")[0]
    form = kind if kind in ("generic", "supercombo") else "split"
    extra = 'type = "generic"\n' if kind == "generic" else ""
    return (
        f'[models.{model_id}]\nname = "{model_id}"\nversion = "v11"\nseries = "Bench"\n'
        f'released = "2026-01-01"\nflags = "{flags}"\n{extra}'
        f'source = {{ kind = "file", path = "networks/{model_id}", format = "{form}" }}\n'
    )


def findings(folder: Path) -> list[dict[str, Any]]:
    """What the reference gate found of every model that passed, those nearest to their limit first."""
    records = (json.loads(path.read_text()) for path in (folder / "artifacts/results").glob("*.json"))
    gates = (one for record in records for one in record.get("facts", {}).get("gates", []))
    return sorted((one for one in gates if one["gate"] == "reference"), key=share, reverse=True)


def share(finding: dict[str, Any]) -> float:
    """How much of what its limit allows a finding uses."""
    value, limit = finding["value"], finding["limit"]
    is_correlation = finding["subject"].endswith(" correlation")
    return float((1 - value) / (1 - limit) if is_correlation else value / limit)


def main(arguments: list[str]) -> int:
    """Build, and print the worst."""
    flags, width, *seeds = [*arguments, *["cpu", "8", "1"][len(arguments) :]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        catalog(folder, flags, int(width), [int(seed) for seed in seeds])
        subprocess.run([sys.executable, "-m", "doit", "--continue"], cwd=folder, check=False)
        found = findings(folder)
    print(f"{flags}, width {width}, seeds {' '.join(seeds)}: {len(found)} findings")
    for one in found[:ROWS]:
        numbers = f"{one['value']:.7g} of {one['limit']:.7g}"
        print(f"{share(one):6.1%}  {one['subject']} ({one.get('group', '')}): {numbers}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
