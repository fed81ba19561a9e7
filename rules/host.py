"""What this machine and environment are, as far as that decides bytes; light enough for an idle run."""

import functools
import importlib.metadata
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@functools.cache
def tinygrad_version() -> str | None:
    try:
        return importlib.metadata.version("tinygrad")
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions() -> dict[str, str | None]:
    """The versions that this environment shows of what compiles."""
    return {"tinygrad": tinygrad_version(), "numpy": numpy_version()}


@functools.cache
def numpy_version() -> str:
    return importlib.metadata.version("numpy")


@functools.cache
def cpu_features() -> str:
    """The processor's features, sorted, as the kernel lists them; its name where there is no such list."""
    if not CPUINFO.exists():
        return platform.processor()
    with CPUINFO.open() as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return " ".join(sorted(value.split()))
    return platform.processor()
