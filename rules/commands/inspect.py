"""`doit inspect FILE`: what an artifact is and whether it is sound, without running any of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rules.commands import recorded
from rules.commands.arguments import JSON, UsageError, option
from rules.commands.command import Command
from rules.counting import counted
from rules.errors import printable

if TYPE_CHECKING:
    from rules.inspection import Report
    from rules.inspection.graph import Jit

CONTRACTS = ("policy", "warp")
WIDE = 4000  # characters of a line
SHOWN = 8  # differences of one kind that are listed before "and more"


class Inspect(Command):
    """Exit codes: 0 sound, loads here and as expected; 1 suspicious or not as expected; 2 unreadable."""

    name = "inspect"
    doc_purpose = "tell what an artifact is, without running any of it"
    doc_usage = "FILE"
    doc_description = (
        "FILE is any pickle artifact, whole or in parts (name one part, the .sha256 or the bare name). "
        "What is said first: whether its data are sound, and whether the tinygrad here loads it. Exit codes: "
        "0 sound, loads here and as expected; 1 suspicious, for another tinygrad, or not as expected or as "
        "recorded; 2 unreadable."
    )
    cmd_options = (
        JSON,
        option("expect_device", "fail unless every JIT was captured on DEVICE (may be repeated)", kind=list),
        option("expect_contract", "fail unless the contract is `policy` or `warp`", kind=str),
    )
    least = most = 1

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Inspect the one operand; print; return 0, 1 or 2 as above."""
        from rules.inspection import inspect
        from rules.inspection.artifact import expectations

        contract = options["expect_contract"]
        if contract not in (None, *CONTRACTS):
            raise UsageError(f"doit inspect: --expect-contract: expected policy or warp, got {contract!r}")
        report, record = inspect(Path(operands[0])), recorded.of(Path(operands[0]))
        failed = expectations(report, options["expect_device"], contract)
        if options["json"]:
            known = {**report.as_json(), "record": record and record.as_json()}
            print(json.dumps({**known, "failed_expectations": failed}, indent=2))
        else:
            told = [*lines(report), *([f"  {record}"] if record else ())]
            print("\n".join(map(printable, [*told, *(f"  ✗ {one}" for one in failed)])))
        as_recorded = record is None or record.met
        return report.exit_code or int(bool(failed) or not report.loads or not as_recorded)


def lines(report: "Report") -> Iterator[str]:
    """A report for people, one fact a line; text from the artifact cannot move the cursor."""
    yield _safe(f"{report.name}: {_verdicts(report)}")
    for name, value in _facts(report) if report.opcodes else ():
        if value not in (None, "", ()):
            yield _safe(f"  {name:<14} {value}")
    for jit in report.jits:
        yield from (_safe(line) for line in _jit(jit))
    for problem in report.problems[1:]:
        yield _safe(f"  ✗ {problem.what}")
    if report.fix:
        yield _safe(f"  → {report.fix}")


def _verdicts(report: "Report") -> str:
    """On the data, then on loading it here, which says nothing more of data that are not sound."""
    if report.problems:
        return report.verdict
    if report.loads:
        return "ok as data; loads with the tinygrad here"
    return f"ok as data; does NOT load with the tinygrad here, it needs another: {_some(report.tinygrad)}"


def _facts(report: "Report") -> Iterator[tuple[str, Any]]:
    form = "out-of-band pickle" if report.out_of_band else "pickle"
    parts = f" in {counted(len(report.files), 'part')}" if len(report.files) > 1 else ""
    protocol = f", protocol {report.protocol}" if report.protocol is not None else ""
    size = counted(report.size, "byte")
    yield "file", f"{size}{parts}, {form}{protocol}, {counted(report.opcodes, 'opcode')}"
    checked = report.announced is not None and report.sha256 == report.announced
    yield "sha256", f"{report.sha256}{f', as {report.name}.sha256 says' if checked else ''}"
    yield "layout", f"{report.layout} ({report.role})" if report.role else report.layout
    yield "format version", report.format_version
    yield "model type", report.model_type
    yield "contract", report.contract
    yield "frame skip", report.frame_skip
    yield "cameras", ", ".join(report.cameras)
    yield "behaviour", report.behavior_version
    yield "weights", counted(report.weights_bytes, "byte") if report.jits else None
    for network, shapes in report.shapes.items():
        yield network, ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
    for network, slices in report.output_slices.items():
        yield f"{network} heads", ", ".join(f"{name} [{_bounds(*at)}]" for name, at in slices.items())
    yield "classes", " ".join(report.classes)
    yield "imports", " ".join(report.globals)


def _bounds(start: int | None, stop: int | None, step: int | None) -> str:
    spelled = ":".join("" if one is None else str(one) for one in (start, stop))
    return spelled if step is None else f"{spelled}:{step}"


def _jit(jit: "Jit") -> Iterator[str]:
    devices = ", ".join(jit.devices) or "no device"
    yield f"  {jit.label}: {devices}; kernels: {jit.kernels}; weights: {counted(jit.weights_bytes, 'byte')}"
    for one in jit.inputs:
        shape = "?" if one.shape is None else one.shape
        yield f"    {one.name:<20} {one.dtype} {shape} on {one.device}"
    if not jit.inputs and jit.arguments:
        yield f"    {', '.join(jit.arguments)}"


def _some(texts: tuple[str, ...]) -> str:
    more = f"; and {len(texts) - SHOWN} more" if len(texts) > SHOWN else ""
    return "; ".join(texts[:SHOWN]) + more


def _safe(text: str) -> str:
    cut = text if len(text) <= WIDE else f"{text[:WIDE]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
