"""Carrying a step out: restore it from the store or make it, put it in place, record it."""

import contextlib
import datetime
import shutil
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rules.decide import Judge, is_litter
from rules.errors import SourceError, WorkspaceError, YardError, fills, full, refused
from rules.keeping import files
from rules.keeping.digests import Digest
from rules.keeping.records import Output, Record
from rules.keeping.reuse import Reuse
from rules.keys import Content, differences, key_of
from rules.step import Made, Step
from rules.url import hidden
from rules.workspace import Workspace

LOG_TAIL_LINES = 20
LEAST = 1 << 16  # bytes; with less free, a disk is full


def build(step: Step, judge: Judge, workspace: Workspace, *, force: bool = False) -> Record:
    """Make `step` fresh and return its record; `force` makes it anew even when the store knows the result.

    Raises YardError; then a failure record says what happened, and no target holds anything half made.
    """
    try:
        record = _build(step, judge, workspace, force)
    except YardError as error:
        _note_failure(step, workspace, str(error))
        raise
    except OSError as error:
        told = refused(error, step.task, again=f"doit {step.task}")
        told = full(workspace.root, step.task) if fills(error) else told
        _note_failure(step, workspace, str(told))
        raise told from error
    except Exception as error:
        _note_failure(step, workspace, traceback.format_exc())
        raise YardError(
            f"{step.task}: {type(error).__name__}: {error} (a fault of modelyard's)",
            fix=f"see {workspace.records.path_of(_failure(step))}",
        ) from error
    workspace.records.remove(_failure(step))
    judge.built(step)
    return record


def _build(step: Step, judge: Judge, workspace: Workspace, force: bool) -> Record:
    for upstream in step.after:
        if not judge.decide(upstream).fresh:
            raise YardError(f"{step.task}: {upstream.task} is not built", fix=f"doit {upstream.task}")
    before = judge.record(step)
    _check_folders(
        step, workspace, (*step.targets, *(one.path for one in (before.outputs if before else ())))
    )
    content = judge.content(step)
    started = time.monotonic()
    known = None if force else _known(step, content, step.reuse(), workspace)
    if known is not None:
        blobs, facts = known
    else:
        _check_upstream(step, judge, workspace)
        stamps = judge.stamps(step)
        blobs, facts = _make(step, workspace, content)
        _check_inputs_held_still(step, judge, content, stamps)
        if flaw := step.contradiction(content, blobs):
            raise YardError(f"{step.task}: {flaw}", fix=f"doit {step.task}")
    outputs = _put_in_place(step, judge, workspace, blobs)
    made = "built" if known is None else "restored"
    record = _record(step, content, outputs, facts, made, time.monotonic() - started)
    workspace.records.write(step.record, record)
    _keep(record, step.reuse(), workspace)  # asked once more: a source may be pinned now
    return record


def _check_folders(step: Step, workspace: Workspace, paths: Iterable[str]) -> None:
    """What is made lies in the workspace, and not where a link leads."""
    for path in paths:
        if link := workspace.link_to(path):
            raise WorkspaceError(
                f"{step.task}: {link} is a link, and nothing is made or removed where it leads",
                fix=f"move the link away, then doit {step.task}",
            )


def _keep(record: Record, reuse: Reuse, workspace: Workspace) -> None:
    """Let this key give the result again, here and elsewhere.

    Also after a restore: a result's age, by which `doit gc` goes, counts from its last use.
    """
    named = [{"name": output.name, "sha256": output.sha256} for output in record.outputs]
    result = {"outputs": named, "facts": record.facts, "step": record.step}
    if reuse.own:
        workspace.store.note_result(record.key, result)
    remote = workspace.remote
    if record.made == "built" and remote is not None and remote.of_use(reuse):
        remote.offer(record.key, result)


def _record(
    step: Step,
    content: Content,
    outputs: tuple[Output, ...],
    facts: Mapping[str, Any],
    made: str,
    seconds: float = 0.0,
) -> Record:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Record(step.task, key_of(content), content, outputs, made, now, round(seconds, 3), dict(facts))


def _check_upstream(step: Step, judge: Judge, workspace: Workspace) -> None:
    """What a model's step is about to take from records is what we would have written there."""
    for upstream in step.after if step.model is not None else ():
        record = judge.decide(upstream).record
        if record is not None and (flaw := workspace.records.flaw(upstream.record, record)):
            raise WorkspaceError(
                f"{step.task}: {workspace.records.path_of(upstream.record)}: {flaw}",
                fix=f"doit forget {upstream.task}, then doit {step.task}",
            )


class _Refused(Exception):
    """What a store gave cannot be a result of the step; the text says why."""


Known = tuple[Mapping[str, str], Mapping[str, Any]]  # sha256 by name, and facts


def _known(step: Step, content: Content, reuse: Reuse, workspace: Workspace) -> Known | None:
    """What the key once gave, here or elsewhere, as far as that passes every check of the step's."""
    key, store = key_of(content), workspace.store
    if reuse.own and (found := store.result(key)) is not None:
        try:
            return _believed(step, content, found, workspace)
        except _Refused as refused:
            store.refuse(key, str(refused))
    remote = workspace.remote
    if remote is None or (entry := remote.entry(key, reuse)) is None:
        return None
    try:
        sizes = {blob.sha256: blob.size for blob in entry.outputs}
        _check_told(step, content, entry.result, sizes, workspace)  # before a byte of it is fetched
        return _believed(step, content, entry.result, workspace) if remote.fetch(entry) else None
    except _Refused as refused:
        remote.refuse(key, str(refused))
        return None


def stored_flaw(step: Step, content: Content, found: Mapping[str, Any], workspace: Workspace) -> str:
    """Why a stored result that is complete cannot be one of this step; nothing if it can."""
    try:
        _believed(step, content, found, workspace)
    except _Refused as refused:
        return str(refused)
    return ""


def _believed(step: Step, content: Content, found: Mapping[str, Any], workspace: Workspace) -> Known:
    """A result whose bytes are in the store. Raises _Refused."""
    store, blobs = workspace.store, _blobs(found)
    paths = {name: store.path_of(sha256) for name, sha256 in blobs.items()}
    sizes = {blobs[name]: path.stat().st_size for name, path in paths.items()}
    _check_told(step, content, found, sizes, workspace)
    with _refusing():
        if flaw := step.vet(paths):
            raise _Refused(flaw)
        return blobs, step.check(paths, found["facts"])


def _check_told(
    step: Step, content: Content, found: Mapping[str, Any], sizes: Mapping[str, int], workspace: Workspace
) -> None:
    """Hold what a result of the right form says of itself against the step. Raises _Refused."""
    kind, told = step.task.partition(":")[0], str(found.get("step", "")).partition(":")[0]
    if told != kind:
        raise _Refused(f"expected a result of {kind}, got one of {told!r:.80}")
    with _refusing():
        outputs = tuple(
            Output(name, step.place(name), sizes[sha256], sha256) for name, sha256 in _blobs(found).items()
        )
        paths = {output.path for output in outputs}
        if len(paths) < len(outputs) or not {*step.targets} <= paths:
            got = ", ".join(sorted(paths)) or "none"
            raise _Refused(f"expected the outputs {', '.join(step.targets)}, got {got:.200}")
        record = _record(step, content, outputs, found["facts"], "restored")
        flaws = (
            step.contradiction(content, record.sha256s),
            step.objection(record.digests),
            workspace.records.flaw(step.record, record),
        )
    if flaw := next(filter(None, flaws), ""):
        raise _Refused(flaw)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """Bytes of others may make any code fail in any way; whatever it is, they are not taken."""
    try:
        yield
    except _Refused:
        raise
    except YardError as error:
        raise _Refused(error.what.splitlines()[0]) from None
    except Exception as error:
        raise _Refused(f"{type(error).__name__}: {error}"[:200]) from None


def _blobs(known: Mapping[str, Any]) -> dict[str, str]:
    return {output["name"]: output["sha256"] for output in known["outputs"]}


def _outputs(step: Step, workspace: Workspace, blobs: Mapping[str, str]) -> tuple[Output, ...]:
    return tuple(
        Output(name, step.place(name), workspace.store.path_of(sha256).stat().st_size, sha256)
        for name, sha256 in blobs.items()
    )


def _make(step: Step, workspace: Workspace, content: Content) -> tuple[dict[str, str], Mapping[str, object]]:
    scratch = workspace.store.scratch()
    try:
        try:
            made: Made = step.make(scratch, content)
        except Exception as error:
            # Asked before the scratch folder goes: then there is room again, and the source seems at fault.
            if fills(error) or shutil.disk_usage(scratch).free < LEAST:
                raise full(workspace.root, step.task) from error
            raise
        store = workspace.store
        paths = {n: one if isinstance(one, Path) else store.path_of(one) for n, one in made.outputs.items()}
        facts = step.check(paths, made.facts)
        blobs = {n: store.put(one) if isinstance(one, Path) else one for n, one in made.outputs.items()}
        return blobs, facts
    finally:
        files.discard(scratch)


def _check_inputs_held_still(
    step: Step, judge: Judge, before: Content, stamps: Mapping[str, tuple[int, ...]]
) -> None:
    changed = [name for name, _, _ in differences(before, judge.content_now(step))]
    # A file that was changed and changed back has the digest it had, and may have been read in between.
    now = judge.stamps(step)
    changed += [path for path, stamp in stamps.items() if now.get(path) != stamp]
    if changed:
        names = ", ".join(changed)
        raise SourceError(f"{step.task}: {names} changed while it was being built", fix=f"doit {step.task}")
    # An upstream output was right when the run began; what the step has read is what lies there now.
    if damage := [reason for one in step.after for reason in judge.damage(one)]:
        raise SourceError(f"{step.task}: while it was being built, {damage[0]}", fix=f"doit {step.task}")


def _put_in_place(
    step: Step, judge: Judge, workspace: Workspace, blobs: Mapping[str, str]
) -> tuple[Output, ...]:
    for sha256 in blobs.values():
        _hold(sha256, step, judge, workspace)
    outputs = _outputs(step, workspace, blobs)
    _check_folders(step, workspace, (output.path for output in outputs))
    step.admit({output.name: Digest(output.sha256, output.size) for output in outputs})
    _clear_the_place(step, judge, workspace, outputs)
    for output in outputs:
        final = workspace.path(output.path)
        if not (final.exists() and workspace.digests.of(final).sha256 == output.sha256):
            workspace.store.place(output.sha256, final)
    return outputs


def _hold(sha256: str, step: Step, judge: Judge, workspace: Workspace) -> None:
    """Bring bytes that the store lost back from an upstream output that still has them."""
    if workspace.store.holds(sha256):
        return
    for upstream in step.after:
        record = judge.decide(upstream).record
        for output in record.outputs if record else ():
            if output.sha256 == sha256:
                scratch = workspace.store.scratch()
                copied = files.copy(workspace.path(output.path), scratch / "copy")
                workspace.store.put(copied)
                files.discard(scratch)
                return


def _clear_the_place(step: Step, judge: Judge, workspace: Workspace, outputs: tuple[Output, ...]) -> None:
    """Remove what this step made before and will not leave as it is: a set of files is never a mix of two."""
    wanted = {output.path: output.sha256 for output in outputs}
    before = judge.record(step)
    old = {output.path: output.sha256 for output in before.outputs} if before else {}
    strays = [path for path in judge.listing(step.owns) if path not in wanted] if step.owns else []
    for path in strays:
        if path not in old:
            _check_ours(step, workspace, path)
    for path in reversed(old):
        if wanted.get(path) != old[path]:
            files.remove(workspace.path(path))
    for path in strays:
        _remove(workspace.path(path))
    for output in outputs:
        if workspace.path(output.path).is_symlink():
            files.remove(workspace.path(output.path))


def _check_ours(step: Step, workspace: Workspace, path: str) -> None:
    """Refuse to touch a file that no run of ours can have left; nothing has been removed yet."""
    final = workspace.path(path)
    plain = final.is_file() and not final.is_symlink()
    ours = is_litter(final.name) or (plain and workspace.store.holds(workspace.digests.of(final).sha256))
    if not ours:
        raise WorkspaceError(
            f"{step.task}: {final} does not belong there", fix=f"move it away, then doit {step.task}"
        )


def _remove(path: Path) -> None:
    if files.is_folder(path):
        files.remove_folder(path)
    else:
        files.remove(path)


def _failure(step: Step) -> str:
    return f"{step.model or step.record}_failure"


def _note_failure(step: Step, workspace: Workspace, cause: str) -> None:
    log = workspace.log(step.model or step.record)
    with contextlib.suppress(OSError, WorkspaceError), files.appending(log) as file:
        # Whoever opens the log finds the failure in it.
        file.write(f"=== {step.task} failed: {cause}\n".encode("utf-8", "replace"))
    tail = []
    with contextlib.suppress(OSError, WorkspaceError):
        tail = files.tail(log, files.CHUNK).splitlines()[-LOG_TAIL_LINES:]
    failure = {
        "step": step.task,
        "cause": cause,
        "log": f"logs/{log.name}",
        "log_tail": [hidden(line) for line in tail],
        "next": f"doit {step.task}",
    }
    with contextlib.suppress(OSError, WorkspaceError):  # on a full disk the message on the screen has to do
        workspace.records.write_failure(_failure(step), failure)
