"""Errors a user can act on.

YardError
├── CatalogError    models.toml says something wrong
├── SourceError     a source cannot be fetched, or is not what its pin says
├── ArtifactError   a compiled artifact is damaged, refused or misbehaves
└── WorkspaceError  the disk, the lock or a record is in the way
"""

import errno
import os
from collections.abc import Iterable

from rules.url import hidden
from rules.url import printable as printable

FULL = (errno.ENOSPC, errno.EDQUOT)
CHECK = "check the path, its permissions and the free space"
RIGHTS = "give yourself the right to it, or name another path"
FREE = "free some space there"
ADVICE = {
    errno.EACCES: RIGHTS,
    errno.EPERM: RIGHTS,
    errno.EROFS: "name a path that can be written",
    errno.ENOSPC: FREE,
    errno.EDQUOT: FREE,
    errno.ENOENT: "see that its folder exists and its drive is mounted",
    errno.ENOTDIR: "move away the file that stands where a folder is needed, or name another path",
    errno.EEXIST: "move away what stands there, or name another path",
    errno.EISDIR: "name a file in it",
    errno.EMFILE: "allow more open files (ulimit -n)",
}


class YardError(Exception):
    """One sentence that names the model, the file and the cause; `fix` is what to type or change next.

    Commands print `str(error)` on stderr, without a traceback, and exit with `exit_code`. Of a URL in it,
    scheme, host and path are kept.
    """

    exit_code = 2

    def __init__(self, what: str, *, fix: str = "") -> None:
        self.what, self.fix = printable(hidden(str(what))), printable(hidden(str(fix)))
        super().__init__(self.what)

    def __str__(self) -> str:
        return f"{self.what}\n  → {self.fix}" if self.fix else self.what


class CatalogError(YardError):
    """models.toml says something wrong; `what` starts with `models.toml:LINE: KEY:`."""

    @classmethod
    def of_lines(cls, lines: Iterable[str], *, fix: str) -> "CatalogError":
        """All that is wrong, a line each."""
        error = cls("", fix=fix)
        error.what = "\n".join(map(printable, lines))
        error.args = (error.what,)
        return error


class SourceError(YardError):
    """A source cannot be fetched, or its bytes are not what its pin says."""


class ArtifactError(YardError):
    """A compiled artifact is damaged, refused or misbehaves."""


class WorkspaceError(YardError):
    """The disk, the workspace's lock or a record is in the way."""


def fills(error: BaseException | None) -> bool:
    """Whether an error, or what it came from, is that a disk is full; children tell it in words."""
    while error is not None:
        number = error.errno if isinstance(error, OSError) else None
        if number in FULL or any(os.strerror(one) in str(error) for one in FULL):
            return True
        error = error.__cause__ or error.__context__
    return False


def full(root: object, who: str) -> WorkspaceError:
    """The disk of the workspace `root` is full, whatever `who`, a task, was doing then."""
    return WorkspaceError(
        f"{who}: the workspace {root} is full: {os.strerror(errno.ENOSPC)}",
        fix=f"free some space there (doit gc may), then doit {who}",
    )


def unwritable(root: object, why: str) -> WorkspaceError:
    """The folder `root` cannot be a workspace."""
    return WorkspaceError(
        f"{root}: cannot be the workspace: {why}",
        fix="name another folder with --workspace DIR, or in MODELS_WORKSPACE",
    )


def cause(error: OSError) -> str:
    """Why the operating system refused, without its error number and without the path."""
    return error.strerror or str(error) or type(error).__name__


def located(error: OSError) -> str:
    """`cause`, after the path where the error has one."""
    return f"{error.filename}: {cause(error)}" if error.filename else cause(error)


def refused(error: OSError, who: str, again: str = "run the command again") -> WorkspaceError:
    """What the operating system refused `who`, a command or a task: the path, the cause, what to do then."""
    advice = ADVICE.get(error.errno or 0, CHECK)
    return WorkspaceError(f"{who}: {located(error)}", fix=f"{advice}, then {again}")
