"""Where ONNX files come from: one module per kind of source, and the roles that their files play.

A role is a file's name without its id and `.onnx`: `driving_vision`, `driving_supercombo`, `model`. What a
file keeps outside of itself (`model.onnx.data`) comes with it, under the name that the file has for it.
"""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Protocol

from rules.catalog import Source
from rules.errors import SourceError
from rules.keys import Content


class Kind(Protocol):
    """What a module of this package offers."""

    def files(self, options: Mapping[str, object], base: Path) -> Mapping[str, Path]:
        """Local files the source is read from, by name; a key holds their digests."""
        ...

    def identity(self, options: Mapping[str, object]) -> Content:
        """What else decides the bytes. Raises SourceError."""
        ...

    def fetch(
        self, options: Mapping[str, object], base: Path, scratch: Path, *, cache: Path
    ) -> dict[str, Path]:
        """The ONNX files by role and their outside files by name, in `scratch`; `cache` outlives the run.

        Raises SourceError.
        """
        ...


MODULES = {
    "file": "rules.sources.local",
    "archive": "rules.sources.archive",
    "git": "rules.sources.git",
    "hub": "rules.sources.hub",
    "wheel": "rules.sources.wheel",
    "generated": "rules.sources.seeded",
}


def kind_of(source: Source) -> Kind:
    """The module that fetches this kind of source; raises SourceError for a kind that none fetches."""
    try:
        module: Kind = import_module(MODULES[source.kind])
    except KeyError:
        raise SourceError(
            f"a source of kind {source.kind!r} cannot be fetched by this version of modelyard",
            fix=f'put its ONNX files in a folder and write source = {{ kind = "file", path = "FOLDER" }} '
            f"(kinds that can: {', '.join(sorted(MODULES))})",
        ) from None
    return module
