"""`doit fsck`: read every byte of what is recorded and stored, and name what is damaged."""

import contextlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rules.build import stored_flaw
from rules.commands import damage, selection
from rules.commands.arguments import JSON
from rules.commands.command import CatalogCommand
from rules.counting import counted
from rules.decide import Judge
from rules.errors import YardError, printable
from rules.keeping.digests import Digest
from rules.keeping.files import TEMPORARY_PREFIX, is_file, is_folder, remove, remove_tree
from rules.keeping.lock import holding
from rules.keeping.records import Output
from rules.keeping.store import SHA256
from rules.keys import key_of, shown
from rules.step import Step
from rules.toolchain import is_whole
from rules.workspace import Workspace


@dataclass(frozen=True)
class Damage:
    """One file that is not what it should be; `task` is None for one that is no step's output."""

    path: str
    task: str | None
    what: str

    def __str__(self) -> str:
        return printable(f"{self.path}{f' ({self.task})' if self.task else ''}: {self.what}")


class Fsck(CatalogCommand):
    """Outputs of TASKs and their blobs; without TASK all recorded outputs and the whole store."""

    doc_purpose = "read every recorded byte and name what is damaged"
    doc_usage = "[TASK ...]"
    doc_description = "The exit code is 1 when anything is damaged; the next `doit` mends it."
    cmd_options = (JSON,)

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Check, print, and tell how to mend."""
        yard = self.yard(options)
        steps = selection.named(yard.graph, operands) or list(yard.graph.steps.values())
        with holding(yard.workspace.lock, "doit fsck", reads=True):
            check = Check(yard.workspace)
            damages = check.run(steps, everything=not operands)
            damages += check.results(steps, yard.graph.new_judge(), everything=not operands)
        if options["json"]:
            print(json.dumps({"read": check.read, "damaged": [asdict(one) for one in damages]}, indent=1))
            return int(bool(damages))
        for one in damages:
            print(one)
        if damages:
            mend = " ".join(["doit", *operands])
            print(f"damaged: {len(damages)} of {counted(check.read, 'file')}; to mend: {mend}")
        else:
            print(f"{counted(check.read, 'file')} read, every byte is as recorded")
        return int(bool(damages))


class Check:
    """One reading of a workspace, of its sources and of what compiles; for the holder of the lock alone."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        workspace.digests.doubt()

    @property
    def read(self) -> int:
        """How many files were read."""
        return self.workspace.digests.reads

    def run(self, steps: Iterable[Step], *, everything: bool) -> list[Damage]:
        """What is damaged among all that `steps` read and made, and their blobs (`everything`: all blobs).

        Damaged blobs, and copies of a toolchain, leave the store, so that nothing is made from them.
        """
        steps = list(steps)
        blobs = self._all_blobs() if everything else self._blobs_of(steps)
        bad = [blob for blob in blobs if not self._right(blob)]
        found = [damage for step in steps for damage in self._damages(step)]
        found += [Damage(self._name(blob), None, "its bytes are not those of its name") for blob in bad]
        for blob in bad:
            remove(blob)
        found += [*self._toolchains(), *self._changed_unseen(steps)]
        if found:
            self.workspace.seal.break_()
        self.workspace.digests.flush(wait=True)
        return found

    def results(self, steps: Iterable[Step], judge: Judge, *, everything: bool) -> list[Damage]:
        """Stored results that cannot be what made them (`everything`: also those of no step's current key).

        They leave the store, so that nothing is restored from them.
        """
        store, found = self.workspace.store, dict(self._results_of(steps, judge))
        kept = sorted(store.result_path("").parent.glob("*.json")) if everything else []
        for path in kept:
            if not SHA256.fullmatch(path.stem):  # not ours
                continue
            try:
                store.read_result(path.stem)
            except (OSError, ValueError) as error:
                found[path.stem] = Damage(self._name(path), None, str(error))
        for key in found:
            with contextlib.suppress(OSError):  # a read-only workspace can be looked at
                store.forget_result(key)
        return [found[key] for key in sorted(found)]

    def _results_of(self, steps: Iterable[Step], judge: Judge) -> Iterator[tuple[str, Damage]]:
        store = self.workspace.store
        for step in steps:
            content = judge.decide(step).content
            if content is None:
                continue
            with contextlib.suppress(YardError, OSError, ValueError):  # told already, or nothing is kept
                key = key_of(content)
                found = store.read_result(key)
                complete = all(store.holds(output["sha256"]) for output in found["outputs"])
                if (
                    step.reuse().own
                    and complete
                    and (flaw := stored_flaw(step, content, found, self.workspace))
                ):
                    yield key, Damage(self._name(store.result_path(key)), step.task, flaw)

    def _changed_unseen(self, steps: Iterable[Step]) -> Iterator[Damage]:
        """Sources, tinygrad and our own code where their bytes changed and their times did not."""
        digests = self.workspace.digests
        digests.contradicted.clear()  # outputs and blobs are told already
        for step in steps:
            with contextlib.suppress(YardError, OSError):  # a run will say what is amiss
                digests.of_all(step.files().values())
                step.settings()
                for file in step.files().values():
                    digests.of(file)
        for path, (before, after) in sorted(digests.contradicted.items()):
            told = f"sha256 {shown(before)} is {shown(after)} now"
            yield Damage(path, None, f"its bytes changed, and its times did not: {told}")

    def _toolchains(self) -> Iterator[Damage]:
        """Our copies of what compiles; a damaged one goes, and the next compile makes it anew."""
        folder = self.workspace.hidden / "toolchains"
        for path in sorted(folder.iterdir()) if is_folder(folder) else ():
            if path.name.startswith(".") or is_whole(path / "tinygrad", path.name, self.workspace.digests):
                continue
            yield Damage(self._name(path), None, "this copy of tinygrad is not that of its name")
            remove_tree(path)

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.workspace.root))

    def _all_blobs(self) -> list[Path]:
        cas = self.workspace.store.path_of("00").parent.parent
        found = [
            path
            for folder in (cas.iterdir() if is_folder(cas) else ())
            for path in (folder.iterdir() if is_folder(folder) else [folder] if folder.is_symlink() else ())
        ]
        return sorted(path for path in found if not path.name.startswith((TEMPORARY_PREFIX, ".", "._")))

    def _blobs_of(self, steps: Iterable[Step]) -> list[Path]:
        records = [self.workspace.records.read(step.record) for step in steps]
        digests = {output.sha256 for record in records if record for output in record.outputs}
        paths = [self.workspace.store.path_of(sha256) for sha256 in sorted(digests)]
        return [path for path in paths if path.exists()]

    def _right(self, blob: Path) -> bool:
        return is_file(blob) and self.workspace.digests.of(blob).sha256 == blob.name

    def _damages(self, step: Step) -> Iterator[Damage]:
        record = self.workspace.records.read(step.record)
        kept = self.workspace.records.path_of(step.record)
        if record is None and kept.exists():
            yield Damage(self._name(kept), step.task, "this record is not one of ours, or was edited")
        if record and (flaw := step.contradiction(record.content, record.sha256s)):
            yield Damage(self._name(kept), step.task, flaw)
        for output in record.outputs if record else ():
            if what := self._damage(output):
                yield Damage(output.path, step.task, what)

    def _damage(self, output: Output) -> str | None:
        try:
            digest = self.workspace.digests.of(self.workspace.path(output.path))
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if digest == Digest(output.sha256, output.size):
            return None
        return damage.described(output, digest, self.workspace)
