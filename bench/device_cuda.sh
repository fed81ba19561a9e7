#!/usr/bin/env bash
# Compile, verify and replay generated models of width 64 on an NVIDIA GPU, in every layout.
#
#   bench/device_cuda.sh [WHEELS]
#
# Needs Python 3.11 or newer (PYTHON names it; default python3) and NVIDIA's driver. WHEELS is a folder of
# wheels of everything in pyproject.toml's dependencies, for a machine without a network; without it, Python
# must have them. Put NVIDIA's nvrtc wheel there too where the machine has no CUDA toolkit. Prints one report
# for each model: frames run and dropped, latencies against 50 ms, memory; exit code 0 when all went well.
set -euo pipefail

repo=$(cd "$(dirname "$0")/.." && pwd)
python=$(command -v "${PYTHON:-python3}")
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")
seconds=${SECONDS_EACH:-15}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/yard"

if [ $# -gt 0 ]; then # into an environment of its own: a compile does not look into PYTHONPATH
  wheels=$(cd "$1" && pwd)
  "$python" -m venv --without-pip "$work/venv"
  site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$python" -m pip install --quiet --no-index --no-deps --target "$site" "$wheels"/*.whl
  python=$work/venv/bin/python
else
  site=$work/site
  mkdir "$site"
fi
export PYTHONPATH=$site:$repo

# doit finds our commands by entry points: those of an installed package, made here without building one.
"$python" - "$repo" "$site" <<'PY'
import sys
import tomllib
from pathlib import Path

repo, site = map(Path, sys.argv[1:])
project = tomllib.loads((repo / "pyproject.toml").read_text())["project"]
about = site / "modelyard-0.dist-info"
about.mkdir()
(about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: modelyard\nVersion: {project['version']}\n")
groups = project["entry-points"].items()
lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in entries.items()) for group, entries in groups]
(about / "entry_points.txt").write_text("\n".join(lines))
PY

# The child's environment is built from the flag set alone, so the libraries of the wheels must stand in it.
libraries=$(find "$site" -name 'libnv*.so*' -printf '%h\n' 2>/dev/null | sort -u | tr '\n' ':')
libraries+=${LD_LIBRARY_PATH:-/usr/local/nvidia/lib64}

model() { # id, architecture, further lines
  cat <<TOML
[models.$1]
name = "$1"
version = "v11"
series = "Bench"
released = "2026-01-01"
source = { kind = "generated", architecture = "$2", seed = 1, width = 64 }
$3

TOML
}

cd "$work/yard"
cp "$repo/dodo.py" .
{
  cat <<TOML
[defaults]
flags = "cuda"
model_size = "512x256"
cameras = ["1928x1208", "1344x760"]
frame_skip = 4

[toolchains.default]
tinygrad = "0.14.0"

[flags.cuda]
DEV = "CUDA"
IMAGE = 0
LD_LIBRARY_PATH = "$libraries"
unchecked = ["LD_LIBRARY_PATH"]
requires = "device:CUDA"

[flags.beside] # as with a GPU on USB: another device warps the frames
extends = "cuda"
DEV = "CUDA;CPU:X86"
WARP_DEV = "CPU"
FRAME_DEV = "CPU"
CC = "echo"
NUM_CPU_THREADS = 1
PARALLEL = 0

TOML
  model single vision-conv+attention ''
  model newest vision-conv+attention 'contract = "policy"'
  model external vision-conv+attention $'flags = "beside"\nuses_external_gpu = true'
  model split multi-policy 'layout = "openpilot-split"'
  model supercombo supercombo-24 'layout = "iqpilot-supercombo"'
} > models.toml

nvidia-smi --query-gpu=name,driver_version --format=csv,noheader || echo "nvidia-smi: not there"
status=0
"$python" -m doit -n 2 --continue || status=1
for id in single newest external split supercombo; do
  "$python" - "$id" <<'PY' || true
import json
import sys
from pathlib import Path

name = sys.argv[1]
for step in ("artifact", "validation"):
    path = Path(f"artifacts/results/{name}_{step}.json")
    record = json.loads(path.read_text()) if path.exists() else None
    if record is None:
        print(f"{name} {step}: none")
        continue
    size = sum(one["size"] for one in record["outputs"])
    peak = record["facts"].get("peak_bytes", 0)
    print(f"{name} {step}: {record['seconds']:.1f} s, {size:,} bytes, peak {peak / 2**20:.0f} MiB")
PY
  "$python" -m doit replay "$id" --seconds "$seconds" || status=1
done
for log in artifacts/logs/*.log; do
  [ "$status" = 0 ] || { echo "=== $log"; tail -n 15 "$log"; }
done
exit $status
