"""`doit version`: which modelyard this is, with which doit, tinygrad and Python."""

import importlib.metadata
import platform
from typing import Any

from rules.commands.command import Command

PACKAGES = ("modelyard", "doit", "tinygrad", "numpy", "onnx")


class Version(Command):
    """`doit --version` is answered by doit alone, before it looks for any command."""

    doc_purpose = "print the versions of modelyard and of what it stands on"
    most = 0

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """One line for each."""
        for name in PACKAGES:
            print(f"{name} {_version(name)}")
        print(f"Python {platform.python_version()}")
        return 0


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "is not installed"
