"""`doit` and `doit run`: doit's own run, by the one writer of the workspace."""

import inspect
import sys
from typing import TYPE_CHECKING, Any

from doit.cmd_run import Run as DoitRun

from rules.errors import YardError
from rules.keeping.lock import holding

if TYPE_CHECKING:
    from rules.tasks import Yard

WAIT = {
    "name": "wait",
    "short": "",
    "long": "wait",
    "type": bool,
    "default": False,
    "help": "wait for another run that holds the workspace, instead of giving up",
}


class Run(DoitRun):  # type: ignore[misc]
    """doit's run under the workspace's lock; outside of a modelyard dodo.py it is doit's run and no more."""

    cmd_options = (*DoitRun.cmd_options, WAIT)

    def execute(self, params: Any, args: list[str]) -> int:
        """Load the tasks, then run them; a YardError is a sentence on stderr and an exit code."""
        params.setdefault("yard", None)
        try:
            return int(super().execute(params, args) or 0)
        except YardError as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return error.exit_code

    def _execute(self, yard: "Yard | None", wait: bool, **options: Any) -> int:
        if yard is None:
            return int(super()._execute(**options))
        yard.force = options["always"]
        with holding(yard.workspace.lock, "doit " + " ".join(self.sel_tasks or []), wait=wait):
            yard.workspace.store.sweep()
            try:
                return int(super()._execute(**options))
            finally:
                yard.workspace.digests.flush(wait=True)


# doit hands `_execute` the parameters that its signature names.
_own = inspect.signature(Run._execute).parameters
_doit = inspect.signature(DoitRun._execute).parameters
Run._execute.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*(p for n, p in _own.items() if n != "options"), *(p for n, p in _doit.items() if n != "self")]
)
