"""Errors a user can act on.

YardError
├── CatalogError    models.toml says something wrong
├── SourceError     a source cannot be fetched, or is not what its pin says
├── ArtifactError   a compiled artifact is damaged, refused or misbehaves
└── WorkspaceError  the disk, the lock or a record is in the way
"""


class YardError(Exception):
    """One sentence that names the model, the file and the cause; `fix` is what to type or change next.

    Commands print `str(error)` on stderr, without a traceback, and exit with `exit_code`.
    """

    exit_code = 2

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.what}\n  → {self.fix}" if self.fix else self.what


class CatalogError(YardError):
    """models.toml says something wrong; `what` starts with `models.toml:LINE: KEY:`."""


class SourceError(YardError):
    """A source cannot be fetched, or its bytes are not what its pin says."""


class ArtifactError(YardError):
    """A compiled artifact is damaged, refused or misbehaves."""


class WorkspaceError(YardError):
    """The disk, the workspace's lock or a record is in the way."""
