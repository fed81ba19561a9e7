"""`doit fsck`: read every byte of what is recorded and stored, and name what is damaged."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rules.commands import damage, selection
from rules.commands.arguments import JSON
from rules.commands.command import CatalogCommand
from rules.counting import counted
from rules.keeping.digests import Digest, Stamp
from rules.keeping.files import TEMPORARY_PREFIX
from rules.keeping.lock import holding
from rules.keeping.records import Output
from rules.step import Step
from rules.workspace import Workspace


@dataclass(frozen=True)
class Damage:
    """One file that is not what it should be; `task` is None for a blob of the store."""

    path: str
    task: str | None
    what: str

    def __str__(self) -> str:
        return f"{self.path}{f' ({self.task})' if self.task else ''}: {self.what}"


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
        with holding(yard.workspace.lock, "doit fsck"):
            check = Check(yard.workspace)
            damages = check.run(steps, everything=not operands)
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
    """One reading of a workspace; `read` counts files. Only for the holder of the workspace's lock."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.read = 0
        self._seen: set[int] = set()

    def run(self, steps: Iterable[Step], *, everything: bool) -> list[Damage]:
        """What is damaged among the outputs of `steps` and their blobs (`everything`: all blobs).

        Damaged blobs leave the store, so that nothing is restored from them.
        """
        steps = list(steps)
        blobs = self._all_blobs() if everything else self._blobs_of(steps)
        bad = [blob for blob in blobs if not self._right(blob)]
        found = [damage for step in steps for damage in self._damages(step)]
        found += [Damage(self._name(blob), None, "its bytes are not those of its name") for blob in bad]
        for blob in bad:
            blob.unlink(missing_ok=True)
        if found:
            self.workspace.seal.break_()
        self.workspace.digests.flush(wait=True)
        return found

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.workspace.root))

    def _all_blobs(self) -> list[Path]:
        cas = self.workspace.store.path_of("00").parent.parent
        return sorted(
            path for path in cas.glob("*/*") if not path.name.startswith((TEMPORARY_PREFIX, ".", "._"))
        )

    def _blobs_of(self, steps: Iterable[Step]) -> list[Path]:
        records = [self.workspace.records.read(step.record) for step in steps]
        digests = {output.sha256 for record in records if record for output in record.outputs}
        paths = [self.workspace.store.path_of(sha256) for sha256 in sorted(digests)]
        return [path for path in paths if path.exists()]

    def _right(self, blob: Path) -> bool:
        return self._digest(blob).sha256 == blob.name

    def _digest(self, path: Path) -> Digest:
        """By reading, once for each file however many names it has."""
        inode = Stamp.of(path).inode
        if inode in self._seen:
            return self.workspace.digests.of(path)
        self._seen.add(inode)
        self.read += 1
        return self.workspace.digests.read_again(path)

    def _damages(self, step: Step) -> Iterator[Damage]:
        record = self.workspace.records.read(step.record)
        kept = self.workspace.records.path_of(step.record)
        if record is None and kept.exists():
            yield Damage(self._name(kept), step.task, "this record cannot be read")
        for output in record.outputs if record else ():
            if what := self._damage(output):
                yield Damage(output.path, step.task, what)

    def _damage(self, output: Output) -> str | None:
        try:
            digest = self._digest(self.workspace.path(output.path))
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read ({error.strerror})"
        if digest == Digest(output.sha256, output.size):
            return None
        return damage.described(output, digest, self.workspace)
