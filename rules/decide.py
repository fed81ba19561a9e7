"""The one decision: is a step fresh, stale or unknown, and why. Running, listing, explaining all ask here."""

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rules.errors import YardError, cause, located, printable
from rules.keeping.digests import Digest, Stamp
from rules.keeping.files import TEMPORARY_PREFIX
from rules.keeping.records import Output, Record
from rules.keys import Content, differences, key_of
from rules.step import Step
from rules.workspace import Workspace

NEVER_BUILT = "never built"
FOLLOWS = "follows "


def is_litter(name: str) -> bool:
    """Whether a file's name is one that macOS, or a killed run of ours, leaves behind."""
    return name == ".DS_Store" or name.startswith(("._", TEMPORARY_PREFIX))


class State(Enum):
    """`UNKNOWN`: something upstream is stale, so what this step will read is not known yet."""

    FRESH = "fresh"
    STALE = "stale"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Reason:
    """Why a step is not fresh: what changed, from what, to what (both may be empty)."""

    what: str
    old: str = ""
    new: str = ""

    def __str__(self) -> str:
        return f"{self.what} {self.old} → {self.new}" if self.old or self.new else self.what


@dataclass(frozen=True)
class Decision:
    """The answer for one step, with what it was decided on."""

    step: Step
    state: State
    reasons: tuple[Reason, ...] = ()
    content: Content | None = None
    record: Record | None = None

    @property
    def fresh(self) -> bool:
        """Whether nothing needs to be done."""
        return self.state is State.FRESH


def _differences(old: Content, new: Content) -> list[tuple[str, str, str]]:
    try:
        return differences(old, new)
    except RecursionError:
        return [("its record is nested deeper than any of ours", "", "")]


class Judge:
    """Decides steps of one workspace; remembers its answers until something is built."""

    def __init__(
        self, workspace: Workspace, *, look_again: Callable[[], None] = lambda: None, verify: bool = False
    ) -> None:
        """`look_again` drops whatever steps' settings remember of the machine; `verify` reads every byte."""
        self.workspace = workspace
        if verify:
            workspace.digests.doubt()
            workspace.seal.break_()  # it is but stamps, which may turn out to have told nothing
        self._look_again = look_again
        self._read_ahead = False
        self._lock = threading.RLock()
        self._decided: dict[str, Decision] = {}

    def decide(self, step: Step) -> Decision:
        """Fresh, stale or unknown, with every reason."""
        with self._lock:
            if (known := self._decided.get(step.task)) is None:
                known = self._decided[step.task] = self._decide(step)
            return known

    def built(self, step: Step) -> None:
        """`step` was just built: what is downstream must be decided anew."""
        with self._lock:
            self._decided = {task: one for task, one in self._decided.items() if one.fresh}
            self._decided.pop(step.task, None)
            self._look_again()

    def content_now(self, step: Step) -> Content:
        """`content`, with nothing remembered of the machine."""
        self._look_again()
        return self.content(step)

    def content(self, step: Step) -> Content:
        """Everything that could change the step's bytes, now. Raises YardError, OSError."""
        content: Content = {"settings": step.settings()}
        if step.files:
            content["files"] = {name: self._file(path) for name, path in sorted(step.files.items())}
        if step.after:
            content["inputs"] = {step.named(one): self._outputs(one) for one in step.after}
        return content

    def stamps(self, step: Step) -> dict[str, tuple[int, ...]]:
        """What the file system says of every file the step reads, to tell whether one was touched meanwhile.

        Links that other steps make move the ctime of what lies in the workspace, so there it is left out.
        """
        found: dict[str, tuple[int, ...]] = {str(path): Stamp.of(path) for path in step.files.values()}
        for upstream in step.after:
            record = self.decide(upstream).record
            for output in record.outputs if record else ():
                path = self.workspace.path(output.path)
                found[output.path] = Stamp.of(path)[:3]
        return found

    def record(self, step: Step) -> Record | None:
        """The step's record, if it is this step's: records copied from elsewhere prove nothing here."""
        record = self.workspace.records.read(step.record)
        if record is None or record.step != step.task:
            return None
        own = all(output.path == step.place(output.name) for output in record.outputs)
        whole = {*step.targets} <= {output.path for output in record.outputs}
        return record if own and whole else None

    def _file(self, path: Path) -> Content:
        self.workspace.digests.look(path.parent)  # another file there may make another source
        digest = self.workspace.digests.of(path)
        return {"sha256": digest.sha256, "size": digest.size}

    def _outputs(self, upstream: Step) -> Content:
        record = self.decide(upstream).record
        return {output.name: output.sha256 for output in record.outputs} if record else {}

    def _decide(self, step: Step) -> Decision:
        waiting = [one for one in step.after if not self.decide(one).fresh]
        record = self.record(step)
        if waiting:
            state = State.UNKNOWN if record else State.STALE
            reasons = [Reason(FOLLOWS + one.task) for one in waiting]
            return Decision(step, state, tuple(reasons if record else [self._unrecorded(step), *reasons]))
        try:
            content = self.content(step)
        except YardError as error:
            return Decision(step, State.STALE, (Reason(error.what.splitlines()[0]),), None, record)
        except OSError as error:
            return Decision(step, State.STALE, (Reason(located(error)),), None, record)
        reasons = self._reasons(step, content, record)
        return Decision(step, State.STALE if reasons else State.FRESH, tuple(reasons), content, record)

    def _reasons(self, step: Step, content: Content, record: Record | None) -> list[Reason]:
        if record is None:
            return [self._unrecorded(step)]
        reasons = []
        if key_of(content) != record.key:
            reasons = [Reason(*one) for one in _differences(record.content, content)]
        elif contradiction := step.contradiction(record.content, record.sha256s):
            reasons = [Reason(contradiction)]
        reasons += [reason for output in record.outputs if (reason := self._damage(output))]
        links = {self.workspace.link_to(output.path) for output in record.outputs}
        root = self.workspace.root
        reasons += [Reason(f"{link.relative_to(root)} is a link") for link in sorted(filter(None, links))]
        if objection := step.objection(record.digests):
            reasons.append(Reason(objection))
        return reasons + self._strays(step, record)

    def _unrecorded(self, step: Step) -> Reason:
        if self.workspace.records.path_of(step.record).exists():
            return Reason("its record is not this step's, or cannot be read")
        built = any(self.workspace.path(target).exists() for target in step.targets)
        return Reason("its record is missing" if built else NEVER_BUILT)

    def damage(self, step: Step) -> list[Reason]:
        """What is wrong on disk, now, with the outputs that the step's record lists."""
        record = self.decide(step).record
        return [one for output in (record.outputs if record else ()) if (one := self._damage(output))]

    def _damage(self, output: Output) -> Reason | None:
        path = str(self.workspace.path(output.path))
        digests = self.workspace.digests
        try:
            if not self._read_ahead and not digests.knows(path):
                self._read_all_outputs()
            digest = digests.of(path)
        except FileNotFoundError:
            return Reason(f"{output.path} is missing")
        except OSError as error:
            return Reason(f"{output.path} cannot be read ({cause(error)})")
        if digest == Digest(output.sha256, output.size):
            return None
        if digest.size != output.size:
            return Reason(f"{output.path} was changed on disk: size", f"{output.size:,}", f"{digest.size:,}")
        return Reason(f"{output.path} was changed on disk:", output.sha256[:12], digest.sha256[:12])

    def _read_all_outputs(self) -> None:
        """One file's stamp is new, so others' may be (a copied workspace): read them side by side."""
        self._read_ahead = True
        records = self.workspace.records
        known = (records.read(name) for name in records.names())
        outputs = [output.path for record in known if record for output in record.outputs]
        self.workspace.digests.of_all(str(self.workspace.path(path)) for path in outputs)

    def _strays(self, step: Step, record: Record) -> list[Reason]:
        if step.owns is None:
            return []
        known = {output.path for output in record.outputs}
        strays = [path for path in self.listing(step.owns) if path not in known]
        links = [path for path in sorted(known) if self.workspace.path(path).is_symlink()]
        return [Reason(f"{printable(path)} does not belong there") for path in (*strays, *links)]

    def listing(self, folder: str) -> list[str]:
        """Everything under a workspace folder but folders that hold something, as workspace paths, sorted."""
        found: list[str] = []
        top = self.workspace.path(folder)
        for where, folders, names in os.walk(top):
            self.workspace.digests.look(where)
            here = Path(where)
            links = [name for name in folders if (here / name).is_symlink()]
            found += [str(here.joinpath(name).relative_to(self.workspace.root)) for name in (*names, *links)]
            if not names and not folders and here != top:
                found.append(str(here.relative_to(self.workspace.root)))
        return sorted(found)
