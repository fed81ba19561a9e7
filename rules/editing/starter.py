"""What a new folder starts with: a catalog that builds on any machine, a dodo.py of three lines."""

# Of the workspace; `onnx/<id>/` and `ready-for-resources/<release>/` are made when they are needed.
FOLDERS = (
    "onnx",
    "compiled",
    "driver-monitoring",
    "ready-for-resources",
    "manifests",
    "source-maps",
    "logs",
    "results",
)

DODO = """\
from rules.tasks import Yard
yard = Yard("models.toml")
DOIT_CONFIG, task_graph = yard.config, yard.tasks
"""

CATALOG = """\
# Which driving models exist, from which sources, with which pinned flags, for which release.

[defaults]
flags = { x86_64 = "cpu", arm64 = "cpu-clang", aarch64 = "cpu-clang" } # by `uname -m`
model_size = "512x256"
cameras = ["1928x1208", "1344x760"]
frame_skip = 4

[toolchains.default]
tinygrad = "0.14.0"

[flags.cpu] # x86-64; needs no compiler on the machine
DEV = "CPU:X86"
CC = "echo" # opening its CPU device, tinygrad 0.14.0 has $CC compile four programs that nothing then runs
FLOAT16 = 1
tolerance = { default = 0.02 } # of float16: how far numbers read together may be off, by how far they reach
IMAGE = 0
NUM_CPU_THREADS = 1
PARALLEL = 0

[flags.cpu-clang] # any processor; needs clang
extends = "cpu"
DEV = "CPU"
CC = "clang"
NUM_CPU_THREADS = 1
PARALLEL = 0

[flags.qcom] # the comma device, split models
DEV = "QCOM"
FLOAT16 = 1
tolerance = { default = 0.02 }
IMAGE = 2
JIT_BATCH_SIZE = 0
NOLOCALS = 1
OPENPILOT_HACKS = 1
DEBUG = 0
requires = "device:QCOM"

[flags.qcom-supercombo] # the comma device, supercombo models
extends = "qcom"
IMAGE = 1
absent = ["QCOM_PRIORITY"]

[flags.usbgpu] # a GPU on USB beside the comma device, whose own GPU still warps the frames
DEV = "USB+AMD:LLVM"
WARP_DEV = "QCOM"
FLOAT16 = 1
tolerance = { default = 0.02 }
JIT_BATCH_SIZE = 0
GMMU = 0
TC_OPT = 2
DEBUG = 1
absent = ["IMAGE", "NOLOCALS", "OPENPILOT_HACKS"]
requires = "device:AMD"
"""

# A model that is made here, so that the first `doit` shows something; nobody drives by it.
EXAMPLE = """\

[models.example] # remove it when you have a model of your own
name = "Example"
version = "v11"
series = "Examples"
released = "2026-01-01"
source = { kind = "generated", architecture = "vision-conv+attention", seed = 1, width = 4 }
"""
