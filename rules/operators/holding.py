"""The gate before a compile: every distinct node of a model has been held on its own, now or before.

What passed is kept by node and by all that decides: toolchain, flags, this gate's code, the reference. Two
children do the work, and neither starts when every node is known: one takes networks apart and runs nodes in
onnxruntime, the other runs them in the pinned tinygrad.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rules.builders import local
from rules.builders.job import Job
from rules.builders.room import GB
from rules.builders.watched import Watched
from rules.errors import ArtifactError
from rules.host import distribution
from rules.keeping import files
from rules.keeping.digests import Digests
from rules.keeping.files import write_bytes
from rules.keys import Content, key_of
from rules.networks import architecture
from rules.networks.openshapes import Shapes

RULES = Path(__file__).parent.parent
GATE: Final = "operators"
TOLD: Final = 4  # wrong nodes in a message
LEAST_BYTES: Final = 12 * GB  # that any nodes may take: as much as the reference, which keeps what it expects
CODE: Final = (
    *("operators/*.py", "worker/alone/*.py"),
    *("networks/reference.py", "networks/whole.py", "networks/architecture.py"),
)
REFERENCE: Final = ("onnx", "onnxruntime")
BELOW_13: Final = ("Softmax", "LogSoftmax", "Hardmax")  # where one axis replaced all that follow it


def code(digests: Digests) -> str:
    """One sha256 over all that decides whether a node passes."""
    paths = [path for pattern in CODE for path in sorted(RULES.glob(pattern)) if path.name[:2] != "._"]
    versions = {name: found.version if (found := distribution(name)) else None for name in REFERENCE}
    sources = {path.relative_to(RULES).as_posix(): digests.of(path).sha256 for path in paths}
    return key_of({"sources": sources, "reference": versions})


@dataclass(frozen=True)
class Held:
    """What was found of a model: how many distinct nodes passed, of which operators, how many were run now.

    `used` is the largest error, as a share of what rounding may do; `not_held` says which nodes could not be
    held on their own, and why.
    """

    nodes: int
    operators: tuple[str, ...]
    used: float
    ran: int
    not_held: tuple[str, ...]


class Operators:
    """The nodes that are known to be right, kept in one folder. Safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()

    def hold(
        self, job: Job, networks: Mapping[str, Path], identity: Content, shapes: Shapes | None = None
    ) -> Held:
        """Hold every node of the networks, by role; `job` says where tinygrad runs and under which flags.

        `shapes` are those of inputs whose sizes the files leave open. `identity` is everything but the node
        that decides what tinygrad gives and what passes. Raises ArtifactError that names each wrong node with
        both values, or what became of a child.
        """
        known = _Known(self.folder / key_of(identity)[:32], identity)
        names = {role: _structure(path, shapes or {}) for role, path in networks.items()}
        with self._lock:  # two models of one run that share nodes: the second finds them known
            plans = {role: known.plan(name) for role, name in names.items()}
            ran = 0
            if not all(known.whole(plan) for plan in plans.values()):
                answer = Asking(job, networks, shapes).ask(known.nodes())
                ran = len(answer.verdicts)
                for digest, verdict in answer.verdicts.items():
                    if not is_wrong(verdict):
                        known.note_node(digest, verdict)
                _refuse(job, answer.verdicts)
                plans = {role: known.note_plan(names[role], plan) for role, plan in answer.plans.items()}
        return _held(known, [plan for plan in plans.values() if plan], ran)


def _structure(path: Path, shapes: Shapes) -> str:
    """What of a file decides which nodes it has."""
    inputs = {name: list(shape) for name, shape in shapes.items()}
    return key_of({"structure": architecture.structure(path), **({"shapes": inputs} if inputs else {})})


def _held(known: "_Known", plans: list[Content], ran: int) -> Held:
    nodes = {digest: known.node(digest) for plan in plans for digest in plan["nodes"]}
    passed = [one for one in nodes.values() if one]
    return Held(
        len(passed),
        tuple(sorted({one["operator"] for one in passed})),
        max((one["used"] for one in passed), default=0.0),
        ran,
        tuple(sorted({why for plan in plans for why in plan["not_held"].values()})),
    )


class _Known:
    """What has passed under one identity: a file for each node, and one for each network's list of nodes.

    A file is believed when its content gives its name; else, as when it is not there, the node runs again.
    """

    def __init__(self, folder: Path, identity: Content) -> None:
        self.folder = folder
        self._identity = key_of(identity)
        self._read: dict[str, Content | None] = {}

    def nodes(self) -> list[str]:
        """The digests of all nodes that are known."""
        found = (path.stem for path in sorted((self.folder / "nodes").glob("*.json")))
        return [digest for digest in found if self.node(digest)]

    def node(self, digest: str) -> Content | None:
        """What was found of a node that passed."""
        if digest not in self._read:
            self._read[digest] = self._node(digest)
        return self._read[digest]

    def _node(self, digest: str) -> Content | None:
        found = self._load(self.folder / "nodes" / f"{digest}.json")
        try:
            sound = found is not None and key_of(found["node"]) == digest and 0 <= found["used"] <= 1
            return found if sound and isinstance(found["operator"], str) else None  # type: ignore[index]
        except (KeyError, TypeError):
            return None

    def plan(self, structure: str) -> Content | None:
        """The nodes of a network of this structure, and those that could not be held."""
        found = self._load(self.folder / "networks" / f"{structure}.json")
        try:
            sound = found is not None and found["structure"] == structure and all(map(str, found["nodes"]))
            return found if sound and isinstance(found["not_held"], dict) else None  # type: ignore[index]
        except (KeyError, TypeError):
            return None

    def whole(self, plan: Content | None) -> bool:
        """Whether every node of a plan is known or is known not to be held."""
        return plan is not None and all(
            digest in plan["not_held"] or self.node(digest) for digest in plan["nodes"]
        )

    def note_node(self, digest: str, verdict: Content) -> None:
        """A node passed."""
        self._keep(self.folder / "nodes" / f"{digest}.json", verdict)
        self._read.pop(digest, None)

    def note_plan(self, structure: str, plan: Content) -> Content:
        """A network was taken apart."""
        kept = {"structure": structure, **plan}
        self._keep(self.folder / "networks" / f"{structure}.json", kept)
        return kept

    def _keep(self, path: Path, content: Content) -> None:
        write_bytes(path, json.dumps({**content, "identity": self._identity}, sort_keys=True).encode())

    def _load(self, path: Path) -> Content | None:
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads(files.read(path))
            return found if isinstance(found, dict) and found.get("identity") == self._identity else None
        return None


# ---- what is wrong, in words


def is_wrong(verdict: Content) -> bool:
    """Whether a node does not pass."""
    return "expected" in verdict or "failed" in verdict


def _refuse(job: Job, verdicts: Mapping[str, Content]) -> None:
    wrong = [one for one in verdicts.values() if is_wrong(one)]
    if not wrong:
        return
    tinygrad = f"tinygrad {_version(job)}"
    said = [sentence(tinygrad, one) for one in wrong[:TOLD]]
    more = f"; and {len(wrong) - TOLD} more nodes" if len(wrong) > TOLD else ""
    raise ArtifactError(f"{job.label}: {'; '.join(said)}{more}", fix=_advice(wrong))


def sentence(tinygrad: str, one: Content) -> str:
    """What is wrong with a node: operator, opset, both values or what tinygrad raised, and the node."""
    domain = one["node"]["domain"]
    operator = f"{domain + '.' if domain else ''}{one['operator']} of opset {one['opset']}"
    if "failed" in one:
        return f"{tinygrad} cannot run {operator} as it is here: {one['shown']}: {one['failed']}"
    values = f"expected {one['expected']}, got {one['got']}"
    return f"{tinygrad} computes {operator} wrongly here: {values} ({one['shown']})"


def _advice(wrong: list[Content]) -> str:
    old = [one["operator"] for one in wrong if one["operator"] in BELOW_13 and one["opset"] < 13]
    export = "export the model at opset 13 or newer" if len(old) == len(wrong) else "export it without that"
    return (
        f"{export}, or pin a toolchain whose tinygrad computes it right; as the last resort, for a model that"
        f' is known to drive well with these values: skip_gates = ["{GATE}"]'
    )


def _version(job: Job) -> str:
    return str(job.request["tinygrad"])


# ---- the children


@dataclass(frozen=True)
class Answer:
    """The nodes of each network by digest (`nodes`, `not_held`), and what was found of those that ran."""

    plans: dict[str, Content]
    verdicts: dict[str, Content]


class Asking:
    """One model's unknown nodes, taken to both sides."""

    def __init__(self, job: Job, networks: Mapping[str, Path], shapes: Shapes | None = None) -> None:
        self.job = job
        self.shapes = shapes or {}
        self.networks = networks
        self.scratch = job.scratch / GATE

    def ask(self, known: list[str]) -> Answer:
        """Take the networks apart, run what is unknown on both sides, judge.

        Raises ArtifactError that says what became of a child that ended without an answer.
        """
        self.scratch.mkdir()
        request = {
            "networks": {role: str(path) for role, path in self.networks.items()},
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "known": known,
            "scratch": str(self.scratch),
            "half": self._images() and self.job.flags.get("FLOAT16", "0") != "0",
        }
        with self._reference() as reference:
            taken = reference.answer(request)
            plans = taken["plans"]
            if not taken["cases"]:
                return Answer(plans, {})
            given = self.scratch / "given.npz"
            told = self._tinygrad(taken["cases"], given)
            verdicts = reference.answer(
                {"given": str(given), "sha256": told["sha256"], "failed": told["failed"]}
            )
        return Answer(plans, verdicts)

    def _images(self) -> bool:
        """Whether the flag set has tinygrad write sums as reads of images, in float16 if it says so."""
        return self.job.flags.get("IMAGE", "0") != "0"

    @contextlib.contextmanager
    def _reference(self) -> Iterator["_Reference"]:
        arguments = [sys.executable, "-s", "-P", "-m", "rules.operators.reference"]
        env = {"PYTHONPATH": ":".join(path for path in sys.path if path), "LC_ALL": "C.UTF-8"}
        log, pipe = self.scratch / "reference.log", subprocess.PIPE
        with files.appending(log) as errors:
            process = subprocess.Popen(arguments, env=env, stdin=pipe, stdout=pipe, stderr=errors)
        with process, Watched(process, None, works=False) as watch:  # it limits its own memory
            yield _Reference(self.job.label, process, watch, log)

    def _tinygrad(self, cases: list[Content], given: Path) -> dict[str, Any]:
        request = {**self.job.request, "operation": GATE, "cases": cases, "given": str(given)}
        # What an operator means is what is held; how well kernels are optimised shows in the whole artifact.
        # Kernels of images cannot do without.
        flags = self.job.flags if self._images() else {**self.job.flags, "NOOPT": "1"}
        job = replace(self.job, request=request, flags=flags, scratch=self.scratch)
        home = self.scratch / "home"
        home.mkdir()
        asked, result = local.written(job)
        most = max(job.most_bytes or 0, LEAST_BYTES)
        with local.logging(job) as log:
            process = subprocess.Popen(
                local.command(job, str(asked), str(result)),
                env=local.environment(job, home),
                cwd=home,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            with Watched(process, most) as watch:
                process.wait()
        if watch.why or not result.exists():
            raise self._died(watch.why or _how(process.returncode), cases)
        found: dict[str, Any] = json.loads(files.read(result))
        return found

    def _died(self, how: str, cases: list[Content]) -> ArtifactError:
        lines = files.tail(self.job.log, files.TEXT).splitlines()
        begun = {f"{number} of {len(cases)}: {one['node']}" for number, one in enumerate(cases, 1)}
        last = next((line for line in reversed(lines) if line in begun), "none yet")
        return ArtifactError(
            f"{self.job.label}: the tinygrad that runs its nodes one by one {how}; the last was {last}",
            fix=f"read {self.job.log}, then doit candidate:{self.job.label}",
        )


def _how(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


class _Reference:
    """The reference's child: a line of JSON in, a line out."""

    def __init__(self, label: str, process: "subprocess.Popen[bytes]", watch: Watched, log: Path) -> None:
        self.label, self.process, self.watch, self.log = label, process, watch, log

    def answer(self, request: Content) -> Any:
        """Its answer, however long it takes a child that does something. Raises ArtifactError."""
        assert self.process.stdin and self.process.stdout
        self.watch.works = True
        with contextlib.suppress(BrokenPipeError):  # what it died of is told below
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line.endswith(b"\n"):
            self.process.wait()
            raise self._died(self.watch.why or _how(self.process.returncode))
        self.watch.works = False
        return json.loads(line)

    def _died(self, how: str) -> ArtifactError:
        lines = [line for line in files.tail(self.log, files.CHUNK).splitlines() if line.strip()]
        words = f": {lines[-1]}" if lines else ""
        return ArtifactError(
            f"{self.label}: the reference that holds its nodes one by one {how}{words}",
            fix=f"doit candidate:{self.label}; where that does not help, see what ended it",
        )
