"""What this machine and environment are, as far as that decides bytes; light enough for an idle run."""

import functools
import importlib.metadata
import platform
import site
import sys
from pathlib import Path

from rules.errors import SourceError

CPUINFO = Path("/proc/cpuinfo")
COMPILES = ("tinygrad", "numpy")


@functools.cache
def distribution(name: str) -> importlib.metadata.Distribution | None:
    """The installed package that a compile imports under this name.

    A compile sees neither PYTHONPATH nor the user's own packages nor the current folder, so what any of them
    says of the package is not asked.
    """
    return next(iter(importlib.metadata.distributions(name=name, path=_packages())), None)


def _packages() -> list[str]:
    """The environment's folders of packages, and what its .pth files add to them: the end of `sys.path`."""
    folders = site.getsitepackages()
    at = next((index for index, path in enumerate(sys.path) if path in folders), None)
    return folders if at is None else sys.path[at:]


def installed_versions() -> dict[str, str | None]:
    """The versions that this environment shows of what compiles."""
    found = {name: distribution(name) for name in COMPILES}
    return {name: one.version if one else None for name, one in found.items()}


def tinygrad_version() -> str | None:
    return installed_versions()["tinygrad"]


def numpy_version() -> str:
    """Raises SourceError when a compile would find no numpy."""
    version = installed_versions()["numpy"]
    if version is None:
        raise SourceError(
            f"numpy is not installed for {sys.executable}, which compiles",
            fix=f"{sys.executable} -m pip install numpy: a compile does not look into PYTHONPATH",
        )
    return version


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
