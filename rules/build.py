"""Carrying a step out: restore it from the store or make it, put it in place, record it."""

import contextlib
import datetime
import shutil
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rules.decide import Judge, is_litter
from rules.errors import SourceError, WorkspaceError, YardError, refused
from rules.keeping.digests import Digest
from rules.keeping.records import Output, Record
from rules.keys import Content, differences, key_of
from rules.step import Made, Step
from rules.url import hidden
from rules.workspace import Workspace

LOG_TAIL_LINES = 20


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
    content = judge.content(step)
    key = key_of(content)
    started = time.monotonic()
    known = None if force else _known(step, content, workspace)
    if known is not None:
        blobs, facts = _blobs(known), known["facts"]
    else:
        _check_upstream(step, judge, workspace)
        stamps = judge.stamps(step)
        blobs, facts = _make(step, workspace, content)
        _check_inputs_held_still(step, judge, content, stamps)
    outputs = _put_in_place(step, judge, workspace, blobs)
    made = "built" if known is None else "restored"
    record = _record(step, content, outputs, facts, made, time.monotonic() - started)
    workspace.records.write(step.record, record)
    named = [{"name": output.name, "sha256": output.sha256} for output in outputs]
    result = {"outputs": named, "facts": record.facts, "step": step.task}
    # Also after a restore: a result's age, by which `doit gc` goes, counts from its last use.
    workspace.store.note_result(key, result)
    if known is None and workspace.remote is not None:
        workspace.remote.offer(key, result)
    return record


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


def _known(step: Step, content: Content, workspace: Workspace) -> dict[str, Any] | None:
    """What the key once gave, here or elsewhere, as long as it can be a result of this step."""
    key, remote = key_of(content), workspace.remote
    found = workspace.store.result(key)
    if found is not None and not _flaw(step, content, found, workspace):
        return found
    found = None if remote is None else remote.result(key)
    if remote is None or found is None:
        return None
    if flaw := _flaw(step, content, found, workspace):
        remote.refuse(key, flaw)
        return None
    return found


def _flaw(step: Step, content: Content, found: Mapping[str, Any], workspace: Workspace) -> str:
    """Why a stored result, whose form was checked already, cannot be one of this step; nothing if it can."""
    kind, told = step.task.partition(":")[0], str(found.get("step", "")).partition(":")[0]
    if told != kind:
        return f"expected a result of {kind}, got one of {told!r:.80}"
    outputs = _outputs(step, workspace, _blobs(found))
    paths = {output.path for output in outputs}
    if len(paths) < len(outputs) or not {*step.targets} <= paths:
        return f"expected the outputs {', '.join(step.targets)}, got {', '.join(sorted(paths)):.200}"
    if objection := step.objection({one.name: Digest(one.sha256, one.size) for one in outputs}):
        return objection
    return workspace.records.flaw(step.record, _record(step, content, outputs, found["facts"], "restored"))


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
        made: Made = step.make(scratch, content)
        store = workspace.store
        blobs = {n: store.put(one) if isinstance(one, Path) else one for n, one in made.outputs.items()}
        return blobs, made.facts
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


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
                copied = shutil.copyfile(workspace.path(output.path), scratch / "copy")
                workspace.store.put(copied)
                shutil.rmtree(scratch, ignore_errors=True)
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
            workspace.path(path).unlink(missing_ok=True)
    for path in strays:
        _remove(workspace.path(path))
    for output in outputs:
        if workspace.path(output.path).is_symlink():
            workspace.path(output.path).unlink()


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
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


def _failure(step: Step) -> str:
    return f"{step.model or step.record}_failure"


def _note_failure(step: Step, workspace: Workspace, cause: str) -> None:
    log = workspace.log(step.model or step.record)
    with contextlib.suppress(OSError):  # whoever opens the log finds the failure in it
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"=== {step.task} failed: {cause}\n")
    tail = log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:] if log.exists() else []
    failure = {
        "step": step.task,
        "cause": cause,
        "log": f"logs/{log.name}",
        "log_tail": [hidden(line) for line in tail],
        "next": f"doit {step.task}",
    }
    with contextlib.suppress(OSError):  # on a full disk the message on the screen has to do
        workspace.records.write_failure(_failure(step), failure)
