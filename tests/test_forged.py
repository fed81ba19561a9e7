"""Our own files as anybody may have written them: refused or made anew by the real doit, never followed."""

import base64
import contextlib
import copy
import hashlib
import http.server
import json
import os
import pickle
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from conftest import needs
from contract import WIDTH, Project, generated, model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rules.keeping.remote_entry import Blob, Entry, encoded
from rules.keys import key_of
from rules.sources import seeded
from rules.sources.archive import folder_digest
from rules.sources.generated import generate

CATALOG = (
    model("mlp", 'source = { kind = "file", path = "networks", format = "generic" }\n', 'type = "generic"')
    + model("pop", generated("vision-conv+attention"), 'since = "v22"')
    + '[release.v22]\ncontract = "warp"\n'
)
DELIVERED = ("onnx/", "compiled/", "manifests/", "ready-for-resources/")
FEW = settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)

Json = Any
DEEP: Json = 1
for _ in range(600):
    DEEP = {"a": DEEP}
SPECIAL = [
    *(None, True, False, -1, 0, 1, 1.5, 10**30, -(10**30), 1e308, float("nan"), float("inf"), "", "x"),
    *(
        "../../../victim",
        "../victim",
        "/nonexistent/victim",
        "victim\0",
        "a\nb",
        "a/b",
        ".",
        "..",
        "\\",
        "\ud800",
    ),
    *("release:v22", "pkl:mlp", "no:such", "compiled/pop_driving_tinygrad.pkl", "0" * 64, "F" * 64, "💣"),
    *([], {}, ["x"], [[]], {"a": 1}, {"device": 1}, DEEP, "a" * 300, "9" * 5000, list(range(50))),
]
JUNK = st.sampled_from(SPECIAL) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


def places(document: Json, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value within a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in items:
        yield (*at, name)
        if isinstance(value, dict | list):
            yield from places(value, (*at, name))


def inner(document: Json, way: tuple[Any, ...]) -> Json:
    for name in way:
        document = document[name]
    return document


@st.composite
def mutated(draw: Callable[[Any], Any], document: Json) -> Json:
    """The document with up to three of its values replaced, taken out, doubled or renamed."""
    document = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 3))):
        every = [way for way in places(document) if way]
        shallow = [way for way in every if len(way) <= 3]  # most values lie deep in facts
        way = draw(st.sampled_from(draw(st.sampled_from([every, shallow])) or [()]))
        if not way:
            break
        holder, last = inner(document, way[:-1]), way[-1]
        change = draw(st.sampled_from(["replace", "replace", "take out", "double", "rename"]))
        if change == "replace":
            holder[last] = draw(JUNK)
        elif change == "take out":
            holder.pop(last)
        elif change == "double" and isinstance(holder, list):
            holder.append(holder[last])
        elif change == "rename" and isinstance(holder, dict):
            holder[draw(st.text(max_size=5) | st.sampled_from(["key", "extra", "../victim"]))] = holder.pop(
                last
            )
    return document


def text_of(document: Json) -> str:
    return json.dumps(document)


def project_in(folder: Path) -> Project:
    """A project whose generic network is a file, so that a store may give it."""
    project, networks = Project(folder, CATALOG), folder / "networks"
    networks.mkdir()
    options = {"architecture": "generic-mlp", "seed": 1, "width": WIDTH}
    for path in seeded.fetch(options, folder, networks, cache=networks).values():
        path.rename(networks / "model.onnx")
    return project


class Forge:
    """A built project whose records and results can be put back as they were."""

    def __init__(self, folder: Path) -> None:
        (folder / "victim").write_text("untouched")
        self.project = project_in(folder / "project")
        (self.project.folder / "victim").write_text("untouched")
        self.project.doit()
        self.surroundings_folder = folder
        self.kept = folder / "kept"
        for name in ("results", ".store/ac"):
            shutil.copytree(self.project.path(name), self.kept / name)
        self.records = {path.stem: json.loads(path.read_text()) for path in self._all("results")}
        self.results = {path.stem: json.loads(path.read_text()) for path in self._all(".store/ac")}
        self.delivered = self.visible()
        self.surroundings = self.around()

    def _all(self, folder: str) -> list[Path]:
        return sorted(self.project.path(folder).glob("*.json"))

    def visible(self) -> dict[str, bytes]:
        return {name: one for name, one in self.project.files().items() if name.startswith(DELIVERED)}

    def around(self) -> dict[str, bytes | str]:
        """Everything outside of the workspace and of what was kept of it."""
        top = self.surroundings_folder
        paths = [path for path in sorted(top.rglob("*")) if not path.is_relative_to(self.kept)]
        outside = [path for path in paths if not path.is_relative_to(self.project.workspace)]
        litter = ("__pycache__", ".pyc", ".ignored.json")
        named = {str(path): path for path in outside if not str(path).endswith(litter)}
        return {name: path.read_bytes() if path.is_file() else "a folder" for name, path in named.items()}

    def is_kept(self, name: str) -> bool:
        """Whether a store gives this step's result again, and cheaply if not."""
        return self.records[name]["key"] in self.results and not name.startswith("pop_a")

    def restore(self) -> None:
        for name in ("results", ".store/ac"):
            shutil.rmtree(self.project.path(name))
            shutil.copytree(self.kept / name, self.project.path(name))
        for path in self.delivered:
            assert self.project.path(path).exists()

    def run(self, *words: str, env: dict[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """doit, which may fail, but only in a sentence."""
        done = self.project.doit_any(*words, env=env)
        said = done.stdout + done.stderr
        assert done.returncode in (0, 1, 2), said
        assert "Traceback" not in said, said
        assert "fault of modelyard's" not in said, said
        assert done.returncode == 0 or "→ " in said, said
        return done

    def holds(self) -> None:
        """Every command does its work or says why not, and the end is as if nothing had been forged."""
        for words in (("outdated",), ("why", "mlp"), ("why", "pop"), ()):
            done = self.run(*words)
            now = self.visible()
            assert now.keys() <= self.delivered.keys()
            assert all(now[name] == self.delivered[name] for name in now)
            assert self.around() == self.surroundings
        if done.returncode:  # what the sentence says to type mends it
            self.run("forget", "--all")
            assert self.run().returncode == 0
        assert self.visible() == self.delivered


@pytest.fixture(scope="module")
def forge(tmp_path_factory: pytest.TempPathFactory) -> Forge:
    return Forge(tmp_path_factory.mktemp("forge"))


@FEW
@given(st.data())
def test_a_forged_record(forge: Forge, data: st.DataObject) -> None:
    forge.restore()
    name = data.draw(st.sampled_from(sorted(forge.records)))
    document = data.draw(mutated(forge.records[name]))
    if data.draw(st.booleans()) and isinstance(document.get("content"), dict):
        with contextlib.suppress(ValueError):
            document["key"] = key_of(document["content"])
    forge.project.path(f"results/{name}.json").write_text(text_of(document))
    if name.startswith("mlp") and data.draw(st.booleans()):  # let a later step be made from what it tells
        forge.project.path("results/mlp_validation.json").unlink(missing_ok=name == "mlp_validation")
        forge.project.path(f".store/ac/{forge.records['mlp_validation']['key']}.json").unlink()
    forge.holds()


@FEW
@given(st.data())
def test_a_forged_result(forge: Forge, data: st.DataObject) -> None:
    forge.restore()
    name = data.draw(st.sampled_from([one for one in sorted(forge.records) if forge.is_kept(one)]))
    key = forge.records[name]["key"]
    document = data.draw(mutated(forge.results[key]))
    forge.project.path(f"results/{name}.json").unlink()
    forge.project.path(f".store/ac/{key}.json").write_text(text_of(document))
    forge.holds()


# ---- what a remote store says


@pytest.fixture(scope="module")
def shared(forge: Forge, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A remote store that holds the results of one model."""
    folder = tmp_path_factory.mktemp("shared")
    command = [needs("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", "bench", "-f", str(folder / "key")]
    subprocess.run(command, check=True)
    (folder / "allowed-signers").write_text(f"bench {(folder / 'key.pub').read_text()}")
    other = project_in(folder / "other")
    other.catalog += '[store]\nsign = "../key"\n'
    other.doit("pkl:mlp", env={"MODELS_REMOTE": f"file://{folder}/store"})
    shutil.copytree(folder / "store/ac", folder / "kept")
    return folder


@FEW
@given(st.data())
def test_a_forged_remote_result(forge: Forge, shared: Path, data: st.DataObject) -> None:
    forge.restore()
    shutil.rmtree(shared / "store/ac")
    shutil.copytree(shared / "kept", shared / "store/ac")
    step = data.draw(st.sampled_from(["mlp_source", "mlp_artifact", "mlp_validation"]))
    entry = shared / "store/ac" / forge.records[step]["key"]
    whole = json.loads(entry.read_text())
    whole["told"] = json.loads(base64.b64decode(whole.pop("stdoutRaw")))
    forged = data.draw(mutated(whole))
    if "told" in forged:
        forged["stdoutRaw"] = base64.b64encode(json.dumps(forged.pop("told")).encode()).decode()
    entry.write_text(json.dumps(forged))
    for path in (*forge.project.path("results").glob("mlp_*"), *forge.project.path(".store/ac").iterdir()):
        path.unlink()
    remote = {"MODELS_REMOTE": f"file://{shared}/store"}
    done = forge.run("pkl:mlp", env=remote)
    now = forge.visible()
    assert all(now[name] == forge.delivered[name] for name in now)
    assert forge.around() == forge.surroundings
    if done.returncode:  # what it was told of the compile can be plausible, and contradict the artifact
        forge.run("forget", "--all")
    assert forge.run("pkl:mlp").returncode == 0
    forge.restore()


# ---- right in form, and other bytes


class Marks:
    """Loading a pickle of one makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@dataclass(frozen=True)
class Poison:
    """A result that a store gives in place of the right one: the step, its outputs, and what is told of it.

    `told` is None where the store is not asked at all.
    """

    record: str
    outputs: Callable[[Path], dict[str, bytes]]  # told the file that running the bytes would make
    local: str | None
    remote: str | None


def hostile(mark: Path) -> bytes:
    return pickle.dumps(Marks(mark), protocol=4)


def honest(forge: Forge) -> bytes:
    return forge.project.path(".store/candidates/mlp_tinygrad.pkl").read_bytes()


def other_network(_: Path) -> dict[str, bytes]:
    made = generate("generic-mlp", seed=99, width=WIDTH)
    (content,) = made.values()
    return {"model.onnx": content}


POISONS = {
    "another network": Poison(
        "mlp_source", other_network, "model.onnx: expected sha256", "model.onnx: expected"
    ),
    "a program for an artifact": Poison(
        "mlp_artifact", lambda mark: {"artifact": hostile(mark)}, "suspicious global", "suspicious global"
    ),
    "an artifact of another name": Poison(
        "mlp_artifact", lambda _: {"other": b"\x80\x04]."}, "expected artifact", "expected artifact"
    ),
    "other bytes than were verified": Poison(
        "mlp_validation", lambda mark: {"artifact": hostile(mark)}, "artifact: expected sha256", None
    ),
    "parts of nothing": Poison(
        "pop_parts",
        lambda _: {".p00": b"x", ".sha256": b"0" * 64 + b"  pop_driving_tinygrad.pkl\n"},
        "expected no parts, got .p00, .sha256",
        "expected no parts, got .p00, .sha256",
    ),
    "another manifest": Poison("v22_manifest", lambda _: {"model_names_v22.json": b"[]"}, None, None),
    "another release": Poison("v22_release", lambda _: {"model_names_v22.json": b"[]"}, None, None),
}


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder behind HTTP, to be read."""
    quiet = {"log_message": lambda *_: None}
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), quiet)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def poisoned_workspace(forge: Forge, key: str, result: Json, blobs: dict[str, bytes]) -> None:
    for sha256, content in blobs.items():
        path = forge.project.path(f".store/cas/{sha256[:2]}/{sha256}")
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    forge.project.path(f".store/ac/{key}.json").write_text(text_of({**result, "key": key}))


def poisoned_store(folder: Path, key: str, result: Json, blobs: dict[str, bytes]) -> None:
    outputs = [Blob(one["name"], one["sha256"], len(blobs[one["sha256"]])) for one in result["outputs"]]
    entry = Entry(tuple(outputs), result["facts"], result["step"])
    for name, content in {f"ac/{key}": encoded(entry), **{f"cas/{one}": blobs[one] for one in blobs}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@contextlib.contextmanager
def poisoned(forge: Forge, name: str, outputs: dict[str, bytes], where: str, folder: Path) -> Iterator[str]:
    """The poison in place of what this step once gave; the URL of the remote store, if that has it."""
    record = forge.records[name]
    blobs = {hashlib.sha256(one).hexdigest(): one for one in outputs.values()}
    named = [{"name": one, "sha256": hashlib.sha256(outputs[one]).hexdigest()} for one in outputs]
    result = {"outputs": named, "facts": record["facts"], "step": record["step"]}
    forge.project.path(f"results/{name}.json").unlink()
    forge.project.path(f".store/ac/{record['key']}.json").unlink(missing_ok=True)
    if where == "workspace":
        poisoned_workspace(forge, record["key"], result, blobs)
        yield ""
        return
    poisoned_store(folder, record["key"], result, blobs)
    with served(folder) if where == "http" else contextlib.nullcontext(f"file://{folder}") as url:
        yield url


@pytest.mark.parametrize("where", ["workspace", "file", "http"])
@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
def test_other_bytes_than_the_key_tells_get_no_name(
    forge: Forge, poison: Poison, where: str, tmp_path: Path
) -> None:
    forge.restore()
    mark = tmp_path / "ran"
    outputs = poison.outputs(mark)
    told = poison.local if where == "workspace" else poison.remote
    with poisoned(forge, poison.record, outputs, where, tmp_path / "remote") as url:
        done = forge.run(forge.records[poison.record]["step"], env={"MODELS_REMOTE": url})
    assert done.returncode == 0, done.stdout + done.stderr
    refused = [line for line in done.stderr.splitlines() if " refused ac/" in line]
    if told is None:
        assert refused == []
    else:
        (line,) = refused
        assert told in line
        assert line.startswith(f"remote store {url}: " if url else f"store {forge.project.path('.store')}: ")
    assert not mark.exists()
    assert forge.project.record(poison.record)["made"] == "built"
    now = forge.project.record(poison.record)["outputs"]
    assert now == forge.records[poison.record]["outputs"]
    assert forge.visible() == forge.delivered
    assert forge.around() == forge.surroundings


def test_fsck_names_what_is_poisoned_here_and_the_store_is_rid_of_it(forge: Forge, tmp_path: Path) -> None:
    forge.restore()
    said = {}
    for name in ("mlp_source", "mlp_artifact", "mlp_validation", "pop_parts"):
        (poison,) = [one for what, one in POISONS.items() if one.record == name and "name" not in what]
        before = forge.project.path(f"results/{name}.json").read_text()
        with poisoned(forge, name, poison.outputs(tmp_path / "ran"), "workspace", tmp_path):
            forge.project.path(f"results/{name}.json").write_text(before)
        said[f".store/ac/{forge.records[name]['key']}.json ({forge.records[name]['step']}): "] = poison.local
    edited = forge.project.path(f".store/ac/{'ab' * 32}.json")
    edited.write_text("{}")
    done = forge.project.doit("fsck", fails=True)
    lines = done.stdout.splitlines()
    for start, told in said.items():
        assert any(line.startswith(start) and str(told) in line for line in lines), lines
    assert any(line.startswith(f".store/ac/{'ab' * 32}.json: expected a result") for line in lines), lines
    assert not edited.exists()
    assert "every byte is as recorded" in forge.run("fsck").stdout
    assert not (tmp_path / "ran").exists()


def test_a_record_of_other_bytes_than_were_verified_is_out_of_date(forge: Forge, tmp_path: Path) -> None:
    forge.restore()
    evil = hostile(tmp_path / "ran")
    artifact = forge.project.path("compiled/mlp_tinygrad.pkl")
    artifact.unlink()
    artifact.write_bytes(evil)
    forged = copy.deepcopy(forge.records["mlp_validation"])
    forged["outputs"][0] |= {"sha256": hashlib.sha256(evil).hexdigest(), "size": len(evil)}
    forge.project.path("results/mlp_validation.json").write_text(text_of(forged))
    forge.project.path(".store/seal.json").unlink(missing_ok=True)
    assert "artifact: expected sha256" in forge.run("outdated").stdout
    forge.run()
    assert forge.visible() == forge.delivered


# ---- what two workspaces share


def test_a_candidate_is_shared_and_verified_by_whoever_takes_it(forge: Forge, shared: Path) -> None:
    forge.restore()
    for path in (*forge.project.path("results").glob("mlp_*"), *forge.project.path(".store/ac").iterdir()):
        path.unlink()
    shutil.rmtree(shared / "store/ac")
    shutil.copytree(shared / "kept", shared / "store/ac")
    forge.run("pkl:mlp", env={"MODELS_REMOTE": f"file://{shared}/store"})
    made = {one: forge.project.record(f"mlp_{one}")["made"] for one in ("source", "artifact", "validation")}
    assert made == {"source": "restored", "artifact": "restored", "validation": "built"}
    assert forge.visible() == forge.delivered


def test_where_a_trusted_key_signed_it_a_verification_is_shared_too(shared: Path, tmp_path: Path) -> None:
    shutil.rmtree(shared / "store/ac")
    shutil.copytree(shared / "kept", shared / "store/ac")
    project = project_in(tmp_path / "project")
    project.catalog += f'[store]\ntrust = "{shared}/allowed-signers"\nremote = "file://{shared}/store"\n'
    done = project.doit("pkl:mlp")
    assert {project.record(f"mlp_{one}")["made"] for one in ("source", "artifact", "validation")} == {
        "restored"
    }
    assert done.stderr == ""


# ---- what pins a source


@pytest.mark.parametrize("where", ["workspace", "file"])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_store_overrides_no_pin_and_makes_none(tmp_path: Path, where: str, pinned: bool) -> None:
    project = project_in(tmp_path / "project")
    pin = folder_digest(project.folder / "networks")
    options = f'path = "networks", sha256 = "{pin.sha256}", size = {pin.size}, format = "generic"'
    project.catalog = model("arc", f'source = {{ kind = "archive", {options} }}\n', 'type = "generic"')
    project.doit("onnx:arc")
    lock, right = project.folder / "models.lock.json", project.files("onnx")
    before, record = lock.read_text(), project.record("arc_source")
    if not pinned:
        lock.unlink()
    forge = Forge.__new__(Forge)
    forge.project, forge.records = project, {"arc_source": record}
    with poisoned(forge, "arc_source", other_network(tmp_path), where, tmp_path / "remote") as url:
        done = project.doit("onnx:arc", env={"MODELS_REMOTE": url})
    assert ("models.lock.json pins: model.onnx: expected" in done.stderr) == pinned
    assert project.files("onnx") == right
    assert lock.read_text() == before


# ---- single attacks


def record_with(forge: Forge, name: str, **changes: Json) -> Json:
    """A record of another content whose key is right."""
    document = copy.deepcopy(forge.records[name]) | changes
    return document | {"key": changes.get("key", key_of(document["content"]))}


def test_a_record_cannot_have_strangers_files_removed(forge: Forge) -> None:
    victim = forge.project.folder / "victim"
    for path in ("../victim", "results/pop_parts.json", str(victim), "onnx/pop/pop_driving_policy.onnx"):
        forge.restore()
        output = {**forge.records["mlp_source"]["outputs"][0], "path": path}
        for name in (output["name"], path, f"/../../../{path}"):
            forged = record_with(forge, "mlp_source", outputs=[{**output, "name": name}])
            forge.project.path("results/mlp_source.json").write_text(text_of(forged))
            forge.run("clean", "onnx:mlp")
            forge.run("forget", "onnx:mlp")
            assert victim.exists()
            assert forge.visible() == forge.delivered
            forge.project.path("results/mlp_source.json").write_text(text_of(forged))
            forge.holds()


def test_a_key_names_no_file(forge: Forge) -> None:
    """Forgetting a result removes the file that its key names."""
    forge.restore()
    forged = record_with(forge, "mlp_source", key="../../../../victim")
    (forge.project.folder / "victim.json").write_text("untouched")
    forge.project.path("results/mlp_source.json").write_text(text_of(forged))
    forge.run("forget", "onnx:mlp")
    assert (forge.project.folder / "victim.json").read_text() == "untouched"
    (forge.project.folder / "victim.json").unlink()
    forge.holds()


def test_a_result_is_not_put_where_its_name_says(forge: Forge) -> None:
    names = ("/../../../../evil", "../evil", "a/../../evil", "evil\0", "x" * 300, "..", "sub/evil")
    for name in names:
        forge.restore()
        key = forge.records["mlp_source"]["key"]
        forged = copy.deepcopy(forge.results[key])
        forged["outputs"][0]["name"] = name
        forge.project.path("results/mlp_source.json").unlink()
        forge.project.path(f".store/ac/{key}.json").write_text(text_of(forged))
        forge.holds()
        assert not list(forge.surroundings_folder.rglob("*evil*"))


def test_a_result_of_another_kind_is_not_taken(forge: Forge) -> None:
    """Its bytes are in the store, so only what it says of itself tells."""
    forge.restore()
    key = forge.records["mlp_validation"]["key"]
    other = forge.results[forge.records["mlp_source"]["key"]]
    forge.project.path("results/mlp_validation.json").unlink()
    forge.project.path(f".store/ac/{key}.json").write_text(text_of({**other, "key": key}))
    forge.holds()
    assert forge.project.record("mlp_validation")["made"] == "built"


def test_forged_facts_of_a_compile_are_refused_with_the_record_named(forge: Forge) -> None:
    forge.restore()
    forged = copy.deepcopy(forge.records["mlp_artifact"])
    forged["facts"]["replay"] = [{"label": 3}]
    forge.project.path("results/mlp_artifact.json").write_text(text_of(forged))
    forge.project.path("results/mlp_validation.json").unlink()
    forge.project.path(f".store/ac/{forge.records['mlp_validation']['key']}.json").unlink()
    done = forge.project.doit("pkl:mlp", fails=True)
    assert f"{forge.project.path('results/mlp_artifact.json')}: $.facts.replay[0]" in done.stdout
    assert "→ doit forget candidate:mlp, then doit pkl:mlp" in done.stdout
    forge.run("forget", "candidate:mlp")
    assert forge.run().returncode == 0
    assert forge.visible() == forge.delivered


OWN = (
    *("results/mlp_failure.json", "results/mlp_source.json", "results/mlp_artifact.json"),
    *(".store/seal.json", ".store/digests.log", ".store/catalog.json", ".store/lock"),
)


@pytest.mark.parametrize("name", [*OWN, "../.doit.db.ignored.json"])
@pytest.mark.parametrize(
    "content",
    [
        *("[" * 100_000, '[1, 2, 3, 4, "0000", {}]'),
        '{"format": 1, "step": "pkl:mlp", "cause": "\\ud800", "log": "/x", "next": "", "log_tail": 1}',
    ],
    ids=["deep", "list", "failure"],
)
def test_no_file_of_ours_is_believed_for_its_name(forge: Forge, name: str, content: str) -> None:
    forge.restore()
    path = forge.project.path(name)
    before = path.read_bytes() if path.exists() else None
    path.write_text(content, errors="surrogatepass")
    try:
        forge.holds()
    finally:
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)
