"""`doit` and `doit run`: doit's own run, by the one writer of the workspace."""

import contextlib
import inspect
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doit.cmd_run import Run as DoitRun
from doit.cmdparse import CmdParse, CmdParseError, DefaultUpdate

from rules.backend import RecordsBackend
from rules.builders import watched
from rules.commands.arguments import VERIFY, UsageError
from rules.commands.command import INTERRUPTED, AnyOrder
from rules.counting import counted
from rules.errors import printable
from rules.keeping.lock import holding

if TYPE_CHECKING:
    from rules.tasks import Yard

TERMINATED = 128 + signal.SIGTERM
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


class Run(AnyOrder, DoitRun):  # type: ignore[misc]
    """doit's run under the workspace's lock; outside of a modelyard dodo.py it is doit's run and no more."""

    cmd_options = (*DoitRun.cmd_options, WAIT, COLD, VERIFY)
    _refusal: UsageError | None = None

    def parse(self, in_args: list[str]) -> tuple[DefaultUpdate, list[str]]:
        """Options anywhere; an unknown one after a task may be that task's own, as doit has them."""
        try:
            return super().parse(in_args)
        except UsageError as error:
            self._refusal = error
        try:
            options, operands = CmdParse(self.cmdparser.options).parse(in_args)
            return options, operands
        except CmdParseError:
            raise self._refusal from None

    def execute(self, params: Any, args: list[str]) -> int:
        """Load the tasks, then run them. Raises UsageError for a number of tasks at a time that cannot be."""
        if params["num_process"] < 1 and "num_process" in params._non_default_keys:
            got = params["num_process"]
            raise UsageError(f"doit run: -n: expected 1 task or more at a time, got {got}", fix="doit -n 2")
        params.setdefault("yard", None)
        fresh = self._glance(params) if not args else None
        if fresh is not None:
            print(f"0 made, {fresh} up to date")
            return 0
        return int(super().execute(params, args) or 0)

    def _glance(self, params: Any) -> int | None:
        """The number of fresh steps, when the last run's seal still holds and no option asks for more."""
        if params["always"] or params["verify"] or params["reporter"] != DEFAULT_REPORTER:
            return None
        with contextlib.chdir("."):  # a relative --file is looked up once more, by doit
            self.loader.setup(params)
            config = self.loader.load_doit_config()
            database = Path(config.get("dep_file") or params["dep_file"]).absolute()
        yard = config.get("yard")
        # A dodo.py with tasks of its own among the defaults is doit's to decide.
        if yard is None or config.get("default_tasks") != yard.catalog.default_tasks:
            return None
        if RecordsBackend(str(database), None).ignored:
            return None  # the run says what it leaves alone
        found: int | None = yard.glance()
        return found

    def _execute(self, yard: "Yard | None", wait: bool, cold: bool, verify: bool, **options: Any) -> int:
        if yard is None:
            return int(super()._execute(**options))
        if self._refusal is not None:
            raise self._refusal
        yard.force = options["always"]
        yard.graph.cold = cold
        with holding(yard.workspace.lock, shlex.join(["doit", *sys.argv[1:]]), wait=wait):
            yard.begin()
            yard.workspace.store.sweep()
            if verify:
                self._verify(yard)
            code = self._carry_out(yard, options)
            if code < INTERRUPTED:
                yard.seal()
            return code

    def _carry_out(self, yard: "Yard", options: dict[str, Any]) -> int:
        """Run the tasks; an interrupt ends them in a sentence that tells what is kept."""
        ended = False
        before = signal.signal(signal.SIGTERM, _terminate)
        try:
            code = int(super()._execute(**options))
            ended = True
            return code
        except KeyboardInterrupt as interrupt:
            kept = f"kept {counted(yard.made, 'finished step')}" if yard.made else "nothing was finished yet"
            print(f"\ninterrupted: {kept}; the next doit goes on from there", file=sys.stderr)
            return INTERRUPTED if not interrupt.args else int(interrupt.args[0])
        finally:
            signal.signal(signal.SIGTERM, before)
            if not ended:
                watched.interrupt_all()
            yard.graph.warm.close()
            _close_remote(yard, wait=ended)

    def _verify(self, yard: "Yard") -> None:
        """Read every recorded byte first: what was damaged behind an unchanged stat is stale from then on."""
        from rules.commands import fsck, selection

        needed = selection.chain(yard.graph, self.sel_tasks or [])
        for damage in fsck.Check(yard.workspace).run(needed, everything=False):
            print(f"damaged: {damage}", flush=True)


def _terminate(*_: object) -> None:
    raise KeyboardInterrupt(TERMINATED)


def _close_remote(yard: "Yard", *, wait: bool) -> None:
    remote = yard.workspace.remote
    for line in (*yard.workspace.store.refusals, *(remote.close(wait=wait) if remote else ())):
        print(printable(line), file=sys.stderr)


# doit hands `_execute` the parameters that its signature names.
_own = inspect.signature(Run._execute).parameters
_doit = inspect.signature(DoitRun._execute).parameters
Run._execute.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [*(p for n, p in _own.items() if n != "options"), *(p for n, p in _doit.items() if n != "self")]
)
