"""What a run prints: a line per step as it ends, a live line per step that runs, and a sentence per failure.

On a terminal the running steps are shown live; in a pipe there are only plain lines.
"""

import threading
import time
from typing import Any, TextIO

from doit.exceptions import BaseFail, UnmetDependency
from doit.task import Task

REFRESH_PER_SECOND = 4
REASON_WIDTH = 90


class YardReporter:
    """doit's reporter interface (see `doit.reporter.ConsoleReporter`)."""

    desc = "one line a step, live on a terminal"

    def __init__(self, outstream: TextIO, options: dict[str, Any]) -> None:
        self.out = outstream
        self.live: Live | None = None
        self.started: dict[str, float] = {}
        self.fresh = self.made = 0
        self.failed: list[str] = []
        self.skipped: list[str] = []
        self.ignored: list[str] = []
        self.lock = threading.Lock()

    def initialize(self, tasks: dict[str, Task], selected: list[str]) -> None:
        """Called once, before anything runs."""

    def get_status(self, task: Task) -> None:
        """Called when a task is looked at."""

    def execute_task(self, task: Task) -> None:
        """A step starts."""
        if not task.actions:
            return
        with self.lock:
            self.started[task.name] = time.monotonic()
            if self.live is None and self.out.isatty():
                self.live = Live(self.started)
            if self.live is None:
                self.line(f"…  {task.name}{_why(task)}")

    def add_success(self, task: Task) -> None:
        """A step ended well."""
        if not task.actions:
            return
        with self.lock:
            self.made += 1
            self.line(f"✓  {task.name}  {self._took(task)}")
            for note in _asked(task, "notes") or ():
                self.line(f"!  {task.name}  {note}")

    def add_failure(self, task: Task, fail: BaseFail) -> None:
        """A step failed, or could not start because one before it failed."""
        with self.lock:
            if isinstance(fail, UnmetDependency):
                self.skipped.append(task.name)
                return
            took = self._took(task)
            self.failed.append(task.name)
            self.line(f"✗  {task.name}  {took}\n{fail.get_msg().strip()}")

    def skip_uptodate(self, task: Task) -> None:
        """A step was fresh."""
        self.fresh += bool(task.actions)

    def skip_ignore(self, task: Task) -> None:
        """A step is ignored, or follows one that is."""
        follows = next((one for one in task.task_dep if one in self.ignored), None)
        self.ignored.append(task.name)
        why = f", as it follows {follows}" if follows else f" (doit forget {task.name} takes that back)"
        self.line(f"!  {task.name}  ignored{why}")

    def cleanup_error(self, exception: BaseFail) -> None:
        """A teardown failed; no task here has one."""
        self.line(exception.get_msg())

    def runtime_error(self, msg: str) -> None:
        """doit itself could not go on."""
        self.line(msg)

    def teardown_task(self, task: Task) -> None:
        """A teardown starts; no task here has one."""

    def complete_run(self) -> None:
        """Everything ended: one line that sums it up."""
        if self.live is not None:
            self.live.stop()
        total = f"{self.made} made, {self.fresh} up to date"
        total += f", {len(self.ignored)} ignored" if self.ignored else ""
        if self.failed:
            waiting = f", {len(self.skipped)} not reached" if self.skipped else ""
            total += f", {len(self.failed)} failed ({', '.join(self.failed)}){waiting}"
        self.out.write(total + "\n")
        self.out.flush()

    def line(self, text: str) -> None:
        """One line, above the live ones."""
        if self.live is not None:
            self.live.print(text)
        else:
            self.out.write(text + "\n")
            self.out.flush()

    def _took(self, task: Task) -> str:
        started = self.started.pop(task.name, None)
        return "" if started is None else f"{time.monotonic() - started:.1f} s"


def _why(task: Task) -> str:
    reason = _asked(task, "why") or ""
    if len(reason) > REASON_WIDTH:
        reason = reason[: REASON_WIDTH - 1] + "…"
    return f"  {reason}" if reason else ""


def _asked(task: Task, question: str) -> Any:
    """What the yard answers of a task's step; None of a task that is none of ours."""
    action = task.actions[0]  # ours: a bound method of the yard, and the step
    ask = getattr(getattr(getattr(action, "py_callable", None), "__self__", None), question, None)
    return ask(*action.args) if ask else None


class Live:
    """The steps that run now, drawn by rich; imported only when something runs on a terminal."""

    def __init__(self, started: dict[str, float]) -> None:
        from rich.console import Console
        from rich.live import Live as RichLive

        self.started = started
        self.console = Console(highlight=False)
        self.rich = RichLive(
            console=self.console,
            get_renderable=self._render,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
        )
        self.rich.start()

    def _render(self) -> str:
        now = time.monotonic()
        return "\n".join(f"…  {name}  {now - since:.0f} s" for name, since in list(self.started.items()))

    def print(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, markup=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the live lines away."""
        self.rich.stop()
