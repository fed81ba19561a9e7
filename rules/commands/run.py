"""`doit` and `doit run`: doit's own run, by the one writer of the workspace."""

import inspect
import sys
from typing import TYPE_CHECKING, Any

from doit.cmd_run import Run as DoitRun

from rules.errors import YardError
from rules.keeping.lock import holding

if TYPE_CHECKING:
    from rules.tasks import Yard

DEFAULT_REPORTER = "console"  # doit's own default: the user asked for none
WAIT = {
    "name": "wait",
    "short": "",
    "long": "wait",
    "type": bool,
    "default": False,
    "help": "wait for another run that holds the workspace, instead of giving up",
}
COLD = {
    "name": "cold",
    "short": "",
    "long": "cold",
    "type": bool,
    "default": False,
    "help": "compile every model in a process of its own, from nothing",
}


class Run(DoitRun):  # type: ignore[misc]
    """doit's run under the workspace's lock; outside of a modelyard dodo.py it is doit's run and no more."""

    cmd_options = (*DoitRun.cmd_options, WAIT, COLD)

    def execute(self, params: Any, args: list[str]) -> int:
        """Load the tasks, then run them; a YardError is a sentence on stderr and an exit code."""
        params.setdefault("yard", None)
        try:
            fresh = self._glance(params) if not args else None
            if fresh is not None:
                print(f"0 made, {fresh} up to date")
                return 0
            return int(super().execute(params, args) or 0)
        except YardError as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return error.exit_code

    def _glance(self, params: Any) -> int | None:
        """The number of fresh steps, when the last run's seal still holds and no option asks for more."""
        if params["always"] or params["reporter"] != DEFAULT_REPORTER:
            return None
        self.loader.setup(params)
        yard = self.loader.load_doit_config().get("yard")
        return yard.glance() if yard else None

    def _execute(self, yard: "Yard | None", wait: bool, cold: bool, **options: Any) -> int:
        if yard is None:
            return int(super()._execute(**options))
        yard.force = options["always"]
        yard.graph.cold = cold
        with holding(yard.workspace.lock, "doit " + " ".join(self.sel_tasks or []), wait=wait):
            yard.workspace.seal.break_()
            yard.workspace.store.sweep()
            try:
                code = int(super()._execute(**options))
            finally:
                yard.graph.warm.close()
            yard.seal()
            return code


# doit hands `_execute` the parameters that its signature names.
_own = inspect.signature(Run._execute).parameters
_doit = inspect.signature(DoitRun._execute).parameters
Run._execute.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*(p for n, p in _own.items() if n != "options"), *(p for n, p in _doit.items() if n != "self")]
)
