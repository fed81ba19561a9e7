"""A model compiled in a fork of a worker that made another of its architecture has a cold compile's bytes.

So has one whose kernels were lowered one by one, on a single core.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import Project, generated, model, with_tinygrad

from rules import catalog
from rules.build import build
from rules.builders.warm import Warm
from rules.graph import MONITORING, Graph
from rules.workspace import Workspace

POLICY = 'contract = "policy"'
GPU = "uses_external_gpu = true"
SPLIT, SUPERCOMBO = 'layout = "openpilot-split"', 'layout = "iqpilot-supercombo"'
TYPES = {
    "vision_policy": ("vision-conv+attention", ()),
    "vision_policy, images in the policy": ("vision-mixer+gru", (POLICY,)),
    "vision_multi_policy, split, external GPU": ("multi-policy", (SPLIT, GPU, 'flags = "beside"')),
    "supercombo, full rate": ("supercombo-99", ()),
    "supercombo, iqpilot": ("supercombo-24", (SUPERCOMBO,)),
    "generic": ("generic-mlp", ('type = "generic"',)),
    "dmonitoring": ("dmonitoring", ()),
}
BESIDE = '[flags.beside]\nextends = "cpu"\nWARP_DEV = "CPU"\nFRAME_DEV = "CPU"\n'


@pytest.fixture
def warm() -> Iterator[Warm]:
    residents = Warm()
    yield residents
    residents.close()


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """What is started here has a single processor, where there is a way to say so."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def compiled(folder: Path, kind: str, *, seed: int, warm: Warm | None) -> dict[str, str]:
    """Compile the model of a kind whose weights are of `seed`; the sha256 of every file of it."""
    architecture, settings = TYPES[kind]
    source = generated(architecture, seed=seed)
    unit = MONITORING if kind == "dmonitoring" else "m"
    table = f"[models]\n[{unit}]\n{source}" if unit == MONITORING else model(unit, source, *settings)
    Project(folder, BESIDE + table)
    graph = Graph(catalog.load(folder / "models.toml"), Workspace(folder / "artifacts"))
    graph.cold = warm is None
    graph.warm = warm or graph.warm
    for step in graph.needed([f"candidate:{unit}"]):
        made = build(step, graph.judge, graph.workspace)
    return {output.name: output.sha256 for output in made.outputs}


@pytest.mark.parametrize("kind", TYPES)
def test_warm_is_cold_to_the_byte(kind: str, warm: Warm, tmp_path: Path) -> None:
    first = compiled(tmp_path / "first", kind, seed=1, warm=warm)
    (resident,) = warm._residents.values()  # whether it served both is the question here
    forked = compiled(tmp_path / "forked", kind, seed=2, warm=warm)
    assert list(warm._residents.values()) == [resident]
    assert resident.primed
    with one_core() if kind == "vision_policy" else contextlib.nullcontext():
        cold = compiled(tmp_path / "cold", kind, seed=2, warm=None)
    assert forked == cold
    weights = [name for name in forked if "metadata" not in name and "warp" not in name]
    assert weights
    assert all(forked[name] != first[name] for name in weights)


def test_a_worker_that_an_interrupt_ended_is_not_replaced(warm: Warm, tmp_path: Path) -> None:
    warm.close()
    with pytest.raises(KeyboardInterrupt):
        compiled(tmp_path, "generic", seed=1, warm=warm)
    assert not (tmp_path / "artifacts/results/m_failure.json").exists()


SHUFFLED = """
import os, pickle, random
from tinygrad import Tensor, TinyJit
from tinygrad.engine import realize
from rules.worker import forks, lowering

tasks = []

class Kept:
    def imap_unordered(self, work, given):
        tasks.extend(given)
        raise StopIteration

def network(image):
    for width in (8, 16, 8):
        image = image.conv2d(Tensor.empty(width, image.shape[1], 3, 3), padding=1).relu().max_pool2d()
    return image.softmax().contiguous().layernorm().contiguous().gelu().sum(axis=1)

realize.get_worker_pool = Kept
try:
    network(Tensor.empty(1, 3, 32, 32)).realize()
except StopIteration:
    pass
assert len(tasks) > 5

def lowered(seed):
    order = random.Random(seed).sample(range(len(tasks)), len(tasks)) if seed else range(len(tasks))
    answers = {number: lowering._attempt(tasks[number]) for number in order}
    return [answers[number] for number in range(len(tasks))]

def whole(answers):
    return pickle.dumps([lowering.canonical(answer) for answer in answers])

def results(jobs):
    return [forks.result(answer) for answer in forks.answers([forks.begin(job) for job in jobs])]

made = results([lambda seed=seed: lowered(seed) for seed in range(6)])
results = results([lambda one=one: whole(one) for one in made])
print(len({tuple(one) for one in made}), len(set(results)))
"""


def test_what_else_a_fork_has_lowered_does_not_show(tmp_path: Path) -> None:
    script = tmp_path / "shuffled.py"
    script.write_text(SHUFFLED)
    answers, results = map(int, with_tinygrad(script).split())
    assert answers > 1  # else there is nothing to be made equal
    assert results == 1


BURNT = 1.0  # seconds of processor time, by a child that another one started
COUNTED = f"""
import json, os, resource, socket, time
from rules.worker import forge, forks

def burn():
    end = time.process_time() + {BURNT}
    while time.process_time() < end:
        pass

def work(request, result):
    if request == "second":  # the first job is the server's own
        forks.answers([forks.begin(burn)])

ours, theirs = socket.socketpair()
server = os.fork()
if not server:
    ours.close()
    os._exit(forge.serve(theirs.detach(), work))
theirs.close()
for request in ("first", "second"):
    near, far = socket.socketpair()
    message = json.dumps(dict(request=request, result="")).encode()
    socket.send_fds(ours, [message], [far.fileno(), os.open(os.devnull, os.O_WRONLY)])
    far.close()
    assert near.recv(1) == forge.DONE
ours.close()
assert os.waitpid(server, 0)[1] == 0
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(usage.ru_utime + usage.ru_stime)
"""


def test_the_processor_time_of_all_that_it_forked_is_counted(tmp_path: Path) -> None:
    script = tmp_path / "counted.py"
    script.write_text(COUNTED)
    assert float(with_tinygrad(script)) >= BURNT
