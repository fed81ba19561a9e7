"""No wait without an end, and nothing at random: threads, what is no file, children that stand still."""

import errno
import fcntl
import hashlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import onnx
import pytest
from conftest import needs
from contract import PATH, ROOT, Project, generated, model
from files_server import serving

from rules.builders import local, watched
from rules.builders.job import Job
from rules.catalog import load
from rules.errors import ArtifactError, CatalogError, SourceError, WorkspaceError, YardError, printable
from rules.keeping import files
from rules.keeping.digests import Digest, Digests, sha256_of
from rules.keeping.store import Store
from rules.networks import reference, sizes
from rules.releasing import namespace
from rules.sources import download
from rules.sources.generated import generate
from rules.steps.preflight import preflight

ONE = model("mlp", generated("generic-mlp"), 'type = "generic"')
IMPATIENT_S = 60  # for what takes two seconds, and took for ever


def doit(project: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """doit, which ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "doit", *words],
        cwd=project.folder,
        env=project.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=IMPATIENT_S,
    )


@pytest.fixture(scope="module")
def fetched(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("fetched"), ONE)
    project.doit("onnx:mlp")
    return project


# ---- threads


def test_first_runs_side_by_side_do_not_fail_at_random(tmp_path: Path) -> None:
    """Python 3.11 mixes up the syntax trees that two threads make at the same time: seven runs of eight."""
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        rows = []
        for seed in range(4):
            (folder / f"in{seed}").mkdir(parents=True)
            content = generate("generic-mlp", seed=seed, width=4)["model"]
            (folder / f"in{seed}/model.onnx").write_bytes(content)
            source = f'source = {{ kind = "file", path = "in{seed}", format = "generic" }}'
            rows.append(model(f"m{seed}", source, 'type = "generic"'))
        rows.append(f'[store]\nremote = "file://{folder}/store"\n')
        done = doit(Project(folder, "".join(rows)), "-n", "2", "--continue", "onnx")
        assert done.returncode == 0, done.stdout + done.stderr


# ---- a lock of one's own


def test_a_workspace_may_be_the_catalogs_folder(tmp_path: Path) -> None:
    network = generate("generic-mlp", seed=1, width=4)["model"]
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.writestr("model.onnx", network)
    pin = f'sha256 = "{sha256_of(tmp_path / "m.zip")}", size = {(tmp_path / "m.zip").stat().st_size}'
    source = f'source = {{ kind = "archive", path = "m.zip", format = "generic", {pin} }}'
    project = Project(tmp_path, model("m", source, 'type = "generic"'))
    done = doit(project, "--workspace", ".", "onnx:m")
    assert done.returncode == 0, done.stdout + done.stderr
    assert hashlib.sha256(network).hexdigest() in (tmp_path / "models.lock.json").read_text()


def test_ignore_waits_for_no_run_and_touches_nothing_of_it(fetched: Project, tmp_path: Path) -> None:
    project = fetched.copy(tmp_path / "copy")
    descriptor = os.open(project.workspace, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        refused = doit(project, "ignore", "onnx:mlp")
    finally:
        os.close(descriptor)
    assert refused.returncode == 4, refused.stdout + refused.stderr
    assert "ignoring" not in refused.stdout
    assert doit(project, "ignore", "onnx:mlp").returncode == 0


def test_a_lock_that_is_a_link_is_not_written_through(fetched: Project, tmp_path: Path) -> None:
    project = fetched.copy(tmp_path / "copy")
    precious = tmp_path / "precious"
    precious.write_text("mine")
    project.path(".store/lock").unlink()
    project.path(".store/lock").symlink_to(precious)
    refused = doit(project, "onnx:mlp")
    assert refused.returncode == 3
    assert ".store/lock: is a link" in refused.stderr
    assert precious.read_text() == "mine"


# ---- what is no file


@pytest.mark.parametrize(
    "place",
    [
        "artifacts/.store/digests.log",
        "artifacts/.store/seal.json",
        "artifacts/.store/lock",
        "artifacts/.store/catalog.json",
        "artifacts/results/mlp_source.json",
        "artifacts/onnx/mlp/mlp_model.onnx",
        "artifacts/logs/mlp.log",
        ".doit.db.ignored.json",
        "models.toml",
        "models.lock.json",
    ],
)
def test_a_pipe_is_not_waited_for(fetched: Project, tmp_path: Path, place: str) -> None:
    project = fetched.copy(tmp_path / "copy")
    pipe = project.folder / place
    pipe.unlink(missing_ok=True)
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    for words in (("outdated",), ("onnx:mlp",)):
        done = doit(project, *words)  # either it needs none of it, or it says what is wrong
        assert "Traceback" not in done.stderr
        assert done.returncode in (0, 1, 2, 3), done.stdout + done.stderr
        if done.returncode == 2:
            assert pipe.name in done.stdout + done.stderr


def test_a_source_that_is_a_device_or_a_pipe_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = 'source = { kind = "file", path = "in", format = "generic" }'
    project = Project(tmp_path, model("m", source, 'type = "generic"'))
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        make(tmp_path / "in/model.onnx")
        done = doit(project, "onnx:m")
        assert done.returncode != 0
        assert "onnx:m" in done.stdout + done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        (tmp_path / "in/model.onnx").unlink()


def test_only_regular_files_of_a_bounded_size_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(b"12345")
    for path, most, number in (
        (tmp_path / "pipe", 9, errno.EINVAL),
        (Path("/dev/zero"), 9, errno.EINVAL),
        (tmp_path, 9, errno.EISDIR),
        (tmp_path / "large", 4, errno.EFBIG),
    ):
        with pytest.raises(OSError) as caught:
            files.read(path, most)
        assert (caught.value.errno, caught.value.filename) == (number, str(path))
    with pytest.raises(WorkspaceError, match="no plain file"):
        files.appending(tmp_path / "pipe")
    assert files.read(tmp_path / "large", 5) == b"12345"
    assert files.tail(tmp_path / "large", 2) == "45"


# ---- children


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "QUIET_S", 1.0)
    monkeypatch.setattr(watched, "LOOK_S", 0.1)


def job(folder: Path, script: str, most: int | None = None) -> Job:
    """A job for a worker of a few lines."""
    (folder / "worker.py").write_text(script)
    tinygrad = folder / "tinygrad"
    return Job("m", {"operation": "verify"}, {}, tinygrad, folder / "worker.py", folder, folder / "log", most)


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")


@needs_proc
def test_a_worker_that_stands_still_is_ended(tmp_path: Path, impatient: None) -> None:
    stopping = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    with pytest.raises(ArtifactError, match="m: verify did nothing for 1 s and was ended"):
        local.run(job(tmp_path, stopping))


def test_a_worker_that_takes_too_much_memory_is_ended(tmp_path: Path, impatient: None) -> None:
    taking = "import time\nmuch = bytearray(b'x') * 300_000_000\ntime.sleep(600)\n"
    with pytest.raises(ArtifactError, match=r"m: verify took 0\.[1-3] GB of memory") as caught:
        local.run(job(tmp_path, taking, 100_000_000))
    assert "memory_gb = 1" in caught.value.fix


@pytest.fixture
def networks(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "model.onnx").write_bytes(generate("generic-mlp", seed=1, width=4)["model"])
    return {"model": {"path": str(tmp_path / "model.onnx"), "output_slices": None}}


def child_of(folder: Path) -> int:
    """The reference that was started for a folder."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (entry / "cmdline").exists():
            command = (entry / "cmdline").read_bytes()
            if b"rules.networks.reference" in command and os.fsencode(folder) in command:
                return int(entry.name)
    raise AssertionError("no reference runs")


@needs_proc
@pytest.mark.parametrize(
    ("sent", "told"),
    [(signal.SIGSTOP, "did nothing for 1 s and was ended"), (signal.SIGKILL, "was killed by signal 9")],
)
def test_a_reference_that_does_not_answer_is_no_reason_to_skip_a_gate(
    tmp_path: Path, networks: dict[str, object], impatient: None, sent: signal.Signals, told: str
) -> None:
    with (
        pytest.raises(ArtifactError, match=f"m: the reference {told}") as caught,
        reference.prepared(networks, tmp_path / "log", "m") as child,
    ):
        os.kill(child_of(tmp_path), sent)
        child.compare(tmp_path / "none.npz", "0" * 64)
    assert "skip_gates" not in str(caught.value)


@needs_proc
def test_a_reference_may_wait_for_us_and_is_given_a_limit(
    tmp_path: Path, networks: dict[str, object], impatient: None
) -> None:
    with reference.prepared(networks, tmp_path / "log", "m") as child:
        time.sleep(3)
        with pytest.raises(ArtifactError, match="cannot be run"):  # it looks for the file, which is not there
            child.compare(tmp_path / "none.npz", "0" * 64)
    with (
        pytest.raises(ArtifactError, match=r"m: the reference took \S+ GB of memory"),
        reference.prepared(networks, tmp_path / "log", "m", 20_000_000) as child,
    ):
        child.compare(tmp_path / "none.npz", "0" * 64)


def test_a_server_that_drips_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "WINDOW_S", 0.3)
    monkeypatch.setattr(download, "ATTEMPTS", 2)
    over = threading.Event()

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        while not over.wait(0.05):
            handler.wfile.write(b"x")

    with serving() as server:
        server.faults["/m"] = [drip] * 9
        try:
            with pytest.raises(SourceError, match=r"gave up after 2 attempts: .* expected 1,024 a second"):
                expected = Digest("0" * 64, 1_000_000)
                download.download(f"{server.url}/m", expected, tmp_path / "m", tmp_path / "m.part")
        finally:
            over.set()


# ---- bombs


def network(*nodes: onnx.NodeProto, **graph: object) -> onnx.ModelProto:
    """A network of a (1, 4) float input x and an output y."""
    values = [onnx.helper.make_tensor_value_info(one, 1, [1, 4]) for one in "xy"]
    made = onnx.helper.make_graph(list(nodes), "g", values[:1], values[1:], **graph)
    return onnx.helper.make_model(made, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)])


def refused(folder: Path, found: onnx.ModelProto) -> str:
    path = folder / "model.onnx"
    path.write_bytes(found.SerializeToString())
    import tinygrad

    with pytest.raises(SourceError) as caught:
        preflight("m", path, tinygrad_root=Path(tinygrad.__path__[0]))
    return caught.value.what


def test_doubling_is_refused_by_the_name_of_the_node(tmp_path: Path) -> None:
    names = ["x", *(f"t{number}" for number in range(34))]
    nodes = [
        onnx.helper.make_node("Concat", [one, one], [two], name=f"grow_{two}", axis=1)
        for one, two in itertools.pairwise(names)
    ]
    told = refused(tmp_path, network(*nodes, onnx.helper.make_node("ReduceMax", names[-1:], ["y"])))
    assert told.startswith("m: model.onnx: node 'grow_t28' (Concat) makes a tensor of 1x2147483648 numbers")


@pytest.mark.parametrize("architecture", ["supercombo-24", "vision-mixer+gru", "multi-policy"])
def test_shapes_are_those_that_onnx_infers(tmp_path: Path, architecture: str) -> None:
    for role, content in generate(architecture, seed=1, width=4).items():
        path = tmp_path / f"{role}.onnx"
        path.write_bytes(content)
        graph = onnx.shape_inference.infer_shapes(onnx.load(path)).graph
        computed = {name for node in graph.node for name in node.output}
        total = 0
        for value in [*graph.value_info, *graph.output]:
            if value.name in computed:
                numbers = 1
                for size in value.type.tensor_type.shape.dim:
                    numbers *= size.dim_value
                total += numbers
        assert sizes.check(path) == 4 * total


def test_sparse_tensors_are_refused_and_outside_files_of_training_are_seen(tmp_path: Path) -> None:
    relu = onnx.helper.make_node("Relu", ["x"], ["y"])
    values = onnx.helper.make_tensor("w", 1, [1], [1.0])
    places = onnx.helper.make_tensor("i", 7, [1], [2])
    sparse = onnx.helper.make_sparse_tensor(values, places, [4])
    assert "tensor 'w' is sparse" in refused(tmp_path, network(relu, sparse_initializer=[sparse]))
    outside = onnx.TensorProto(name="w", data_type=1, dims=[1], data_location=1)
    outside.external_data.add(key="location", value="../../secret")
    for place in ("training", "function"):
        found = network(relu)
        if place == "training":
            found.training_info.add().algorithm.initializer.append(outside)
        else:
            constant = onnx.helper.make_node("Constant", [], ["c"], value=outside)
            found.functions.add(name="f", domain="d").node.append(constant)
        assert "weights in '../../secret'" in refused(tmp_path, found)


# ---- names, and what is full or cannot be written


def test_a_name_is_shown_on_one_line(tmp_path: Path) -> None:
    name = os.fsdecode(b"a\xff\n\x1b[31mERROR: forged")
    assert printable(name) == "a\\xff\\n\\x1b[31mERROR: forged"
    (tmp_path / name).write_bytes(b"no pickle")
    for words in (["inspect", name], ["split", name], ["join", name]):
        done = subprocess.run(
            [sys.executable, "-m", "doit", *words],
            cwd=tmp_path,
            env={"PATH": PATH, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            check=False,
        )
        told = done.stdout + done.stderr
        assert b"Traceback" not in told
        assert b"\x1b" not in told
        assert not any(line.startswith(b"ERROR: forged") for line in told.splitlines())


def test_an_error_tells_names_on_its_line() -> None:
    error = YardError("a\nb: lost", fix="rm \x1b[2J")
    assert str(error) == "a\\nb: lost\n  → rm \\x1b[2J"


def test_a_workspace_of_any_name_is_built_in(tmp_path: Path) -> None:
    project = Project(tmp_path, ONE)
    done = doit(project, "--workspace", os.fsdecode(b"w\xff\n"), "onnx:mlp")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def mounted() -> Iterator[list[Path]]:
    """Mounts that are undone."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    made: list[Path] = []
    yield made
    for path in made:
        subprocess.run(["umount", str(path)], check=True)


def mount(made: list[Path], path: Path, *words: str) -> None:
    done = subprocess.run([needs("mount"), *words, str(path)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"this machine does not mount that: {done.stderr.decode().strip()}")
    made.append(path)


def test_a_full_workspace_is_no_fault_of_the_source(tmp_path: Path, mounted: list[Path]) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.onnx", bytes(2_000_000))
    pin = f'sha256 = "{sha256_of(tmp_path / "m.zip")}", size = {(tmp_path / "m.zip").stat().st_size}'
    source = f'source = {{ kind = "archive", path = "m.zip", format = "generic", {pin} }}'
    project = Project(tmp_path, model("m", source, 'type = "generic"'))
    project.workspace.mkdir()
    mount(mounted, project.workspace, "-t", "tmpfs", "-o", "size=512k", "tmpfs")
    done = doit(project, "onnx:m")
    assert f"onnx:m: the workspace {project.workspace} is full: No space left on device" in done.stdout
    assert "pack it again" not in done.stdout


def test_a_workspace_that_nobody_can_write_to_is_read(
    fetched: Project, tmp_path: Path, mounted: list[Path]
) -> None:
    project = fetched.copy(tmp_path / "copy")
    mount(mounted, project.workspace, "--bind", "-o", "ro", str(project.workspace))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(project.workspace)], check=True)
    for words in (("fsck",), ("gc", "--dry-run")):
        done = doit(project, *words)
        assert done.returncode == 0, done.stdout + done.stderr
    assert doit(project, "gc").returncode == 2


def test_what_a_killed_run_left_of_a_toolchain_is_swept(tmp_path: Path) -> None:
    left = tmp_path / "toolchains/.tmp-1-abcd/tinygrad/tensor.py"
    left.parent.mkdir(parents=True)
    left.write_text("")
    (tmp_path / "toolchains/0123").mkdir()
    Store(tmp_path, Digests(tmp_path / "digests.log")).sweep()
    assert [path.name for path in (tmp_path / "toolchains").iterdir()] == ["0123"]


# ---- IDs


@pytest.mark.parametrize("name", ["con", "nul", "aux", "prn", "com1", "lpt9"])
def test_a_device_of_windows_is_no_id(tmp_path: Path, name: str) -> None:
    project = Project(tmp_path, ONE.replace("models.mlp", f"models.{name}"))
    with pytest.raises(CatalogError, match=name):
        load(project.folder / "models.toml", machine="x86_64")
    with pytest.raises(CatalogError, match="Windows device"):
        namespace.rename(["x"], version="v2", suffix="3", explicit={"x": name})
    if name[-1].isdecimal():
        with pytest.raises(CatalogError, match="Windows device"):
            namespace.rename([name[:-1]], version="v2", suffix=name[-1], explicit={})
    assert not files.is_plain(f"{name}.pkl")
