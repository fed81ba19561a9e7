"""The StarPilot client: manifests it reads, the files beside them, and its download."""

import json
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rules.clients import starpilot
from rules.errors import ArtifactError, WorkspaceError
from rules.releasing import parts
from rules.releasing.namespace import rename

SCHEMAS = Path(starpilot.__file__).parents[2] / "schemas"


def entry(model_id="rdf23", **changes):
    fields = {
        "name": "Regret Driven Framework V2 👀📡",
        "version": "v15",
        "series": "OP Series",
        "released": "2026-08-10",
        "community_favorite": True,
    }
    return starpilot.manifest_entry(model_id, **fields | changes)


def test_the_manifest_is_byte_exact():
    assert starpilot.manifest([entry()]).decode() == (
        '{\n  "models": [\n    {\n      "id": "rdf23",\n      "name": "Regret Driven Framework V2 👀📡",\n'
        '      "version": "v15",\n      "series": "OP Series",\n      "released": "2026-08-10",\n'
        '      "community_favorite": true\n    }\n  ]\n}\n'
    )


def test_the_external_gpu_is_told_only_when_used():
    assert list(entry(uses_external_gpu=True))[-1] == "uses_external_gpu"
    assert "uses_external_gpu" not in entry(uses_external_gpu=False)
    assert (
        starpilot.check_manifest(starpilot.manifest([entry(uses_external_gpu=True)]))[0]["uses_external_gpu"]
        is True
    )


texts = st.text(min_size=1, max_size=20).filter(lambda text: text.strip() and "," not in text)
entries = st.builds(
    starpilot.manifest_entry,
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,9}", fullmatch=True).filter(lambda text: "_driving_" not in text),
    name=texts,
    version=st.integers(1, 99).map("v{}".format),
    series=texts,
    released=st.dates(min_value=date(1000, 1, 1)).map(str),
    community_favorite=st.booleans(),
    uses_external_gpu=st.booleans(),
)


@given(st.lists(entries, min_size=1, max_size=5, unique_by=lambda one: one["id"]))
def test_what_is_written_is_read_back_in_order(listed):
    content = starpilot.manifest(listed)
    assert starpilot.read_manifest(content) == starpilot.check_manifest(content) == listed
    assert [list(one) for one in starpilot.read_manifest(content)] == [list(one) for one in listed]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "name: expected a text that is not empty and has no comma, got ''"),
        ({"name": " "}, "name: expected a text"),
        ({"name": "Pop, again"}, "got 'Pop, again'"),
        ({"series": "a,b"}, "series: expected"),
        ({"series": None}, "series: expected a text that is not empty and has no comma, got None"),
        ({"version": "v1,5"}, "version: expected"),
        ({"version": ""}, "version: expected"),
        ({"version": "15"}, "$.models[0].version"),
        ({"version": "v15\n"}, "$.models[0].version"),
        ({"released": ""}, "released: expected"),
        (
            {"released": "2026-02-30"},
            "released: expected a date of the calendar as YYYY-MM-DD, got '2026-02-30'",
        ),
        ({"released": "20260810"}, "released: expected YYYY-MM-DD"),
        ({"released": "2026-W33-1"}, "released: expected YYYY-MM-DD"),
        ({"community_favorite": "yes"}, "$.models[0].community_favorite"),
        ({"model_id": "a_driving_b"}, "expected no '_driving_'"),
        ({"model_id": "Pop22"}, "got 'Pop22'"),
        ({"model_id": ""}, "id: expected a text"),
        ({"model_id": "a,b"}, "id: expected a text"),
        ({"model_id": "a\n"}, r"got 'a\n'"),
    ],
)
def test_traps_are_refused(changes, message):
    with pytest.raises(ArtifactError) as caught:
        starpilot.manifest([entry(**changes)])
    assert message in caught.value.what


@pytest.mark.parametrize("field", ["artifact_size", "artifact_sha256", "url"])
def test_v22_and_v23_carry_nothing_about_the_artifact(field):
    with pytest.raises(ArtifactError, match=f"got '{field}'"):
        starpilot.manifest([entry() | {field: 1}])


def test_more_traps():
    with pytest.raises(ArtifactError, match="'rdf23' stands 2 times"):
        starpilot.manifest([entry(), entry(name="other")])
    with pytest.raises(ArtifactError, match="expected one model or more"):
        starpilot.manifest([])
    partial = entry()
    del partial["series"]
    with pytest.raises(ArtifactError, match="expected the field 'series', got nothing"):
        starpilot.manifest([partial])
    with pytest.raises(ArtifactError, match=r"models\[1\] \('Bad'\)"):
        starpilot.manifest([entry(), entry("Bad")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[]", "got a bare list"),
        (b'{"model": []}', "got an object with the keys ['model']"),
        (b'{"models": {}}', 'expected {"models": [ … ]}'),
        (b'{"models": [1]}', r"models[0]: expected an object, got a number"),
        (b"{", "expected JSON"),
        (b"\xff\xfe\xff", "expected JSON"),
        (b"[" * 100_000, "expected JSON"),
        (b'{"models": [], "models": []}', "the key 'models' stands 2 times"),
    ],
)
def test_no_manifest_at_all(content, message):
    with pytest.raises(ArtifactError) as caught:
        starpilot.read_manifest(content)
    assert message in caught.value.what


def test_a_later_generation_is_read_but_not_passed():
    later = [entry() | {"artifact_format": "tinygrad_single_v1", "artifact_size": 5}, {"id": "old"}]
    content = json.dumps({"models": later}).encode()
    assert starpilot.read_manifest(content) == later
    with pytest.raises(ArtifactError, match="got 'artifact_format'"):
        starpilot.check_manifest(content)


@pytest.mark.parametrize("name", ["manifest", "multipart", "id_map"])
def test_schemas_are_schemas(name):
    Draft202012Validator.check_schema(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))


@pytest.mark.parametrize("field", starpilot.TEXTS)
@pytest.mark.parametrize("value", ["", "a,b", 3])
def test_the_manifest_schema_alone_refuses_the_traps(field, value):
    schema = Draft202012Validator(json.loads((SCHEMAS / "manifest.schema.json").read_text()))
    assert schema.is_valid({"models": [entry()]})
    assert not schema.is_valid({"models": [entry() | {field: value}]})
    assert not schema.is_valid({"models": [entry() | {"id": "a_driving_b"}]})
    assert not schema.is_valid([entry()])


def test_the_id_map_is_byte_exact():
    mapping = rename(["pop2", "deeprl3"], version="v23", suffix="3", explicit={"deeprl3": "deeprl33"})
    assert starpilot.id_map(mapping).decode() == (
        '{\n  "from": "v22",\n  "to": "v23",\n  "suffix": "3",\n  "ids": {\n'
        '    "pop2": "pop23",\n    "deeprl3": "deeprl33"\n  }\n}\n'
    )
    assert starpilot.id_map_name("v23") == "model_id_namespace_v23.json"
    assert starpilot.manifest_name("v23") == "model_names_v23.json"


@pytest.mark.parametrize("mapping", [{"a": "x", "b": "x"}, {"A": "a3"}, {"a": "a_driving_3"}, {"a": "a3\n"}])
def test_a_bad_id_map_is_refused(mapping):
    with pytest.raises(ArtifactError, match="id_map: "):
        starpilot.id_map(mapping)


@pytest.fixture
def published(tmp_path):
    source = tmp_path / "in" / starpilot.artifact_name("pop23")
    source.parent.mkdir()
    source.write_bytes(b"0123456789")
    return parts.split(source, tmp_path / "out", part_size=4, force=True)


def test_multipart_lists_what_was_split(published):
    content = starpilot.multipart([starpilot.multipart_entry("pop23", published)])
    assert content.endswith(b"  }\n]\n")
    name = "pop23_driving_tinygrad.pkl"
    assert json.loads(content) == [
        {
            "id": "pop23",
            "filename": name,
            "size": 10,
            "sha256": published.sha256,
            "parts": [f"{name}.p00", f"{name}.p01", f"{name}.p02"],
        }
    ]
    assert starpilot.multipart([]) == b"[]\n"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": "pop2"}, "filename: expected pop2_driving_tinygrad.pkl"),
        ({"parts": ["pop23_driving_tinygrad.pkl.p01"]}, "parts: expected"),
        ({"parts": []}, r"\$\[0\].parts"),
        ({"size": 0}, r"\$\[0\].size"),
        ({"sha256": "0" * 64 + "\n"}, r"\$\[0\].sha256"),
        ({"url": "x"}, "'url' was unexpected"),
    ],
)
def test_a_bad_multipart_is_refused(published, changes, message):
    with pytest.raises(ArtifactError, match=message):
        starpilot.multipart([starpilot.multipart_entry("pop23", published) | changes])


def test_multipart_refuses_an_id_twice(published):
    with pytest.raises(ArtifactError, match="'pop23' stands 2 times"):
        starpilot.multipart([starpilot.multipart_entry("pop23", published)] * 2)


def test_download_gets_parts_only_where_no_whole_file_lies_beside_them(published, tmp_path):
    out = tmp_path / "out"
    before = sorted(out.iterdir())
    assert starpilot.download(out, "pop23") == published.sha256
    assert sorted(out.iterdir()) == before
    (out / published.name).write_bytes(b"another")
    with pytest.raises(
        ArtifactError, match=f"wrong sha256 over {published.name}: expected {published.sha256}"
    ):
        starpilot.download(out, "pop23")


def test_download_gets_a_whole_file(published, tmp_path):
    assert starpilot.download(tmp_path / "in", "pop23") == published.sha256
    (tmp_path / "in" / f"{published.name}.sha256").write_text(f"{'0' * 64}  {published.name}\n")
    with pytest.raises(ArtifactError, match=f"expected {'0' * 64}, got {published.sha256}"):
        starpilot.download(tmp_path / "in", "pop23")


def test_download_refuses_what_the_client_cannot_use(published, tmp_path):
    out = tmp_path / "out"

    def refused(message):
        with pytest.raises(ArtifactError, match=message):
            starpilot.download(out, "pop23")

    published.parts[1].rename(tmp_path / "aside")
    refused(r"wrong sha256 over pop23_driving_tinygrad.pkl.p00: expected")
    (tmp_path / "aside").rename(published.parts[1])
    published.parts[2].write_bytes(b"")
    refused("p02: expected 1 byte or more, got 0")
    published.parts[2].write_bytes(b"89")
    content = published.checksum.read_text()
    published.checksum.write_text(content.replace("pop23_", "pop2_"))
    refused("is of another file: expected 'pop23_driving_tinygrad.pkl', got 'pop2_driving_tinygrad.pkl'")
    published.checksum.unlink()
    refused("expected the checksum of 3 parts, got nothing")
    published.checksum.write_text(content)
    marker = out / f"{published.name}.chunkmanifest"
    marker.write_text("3")
    refused("shadows pop23_driving_tinygrad.pkl")
    marker.unlink()
    assert starpilot.download(out, "pop23") == published.sha256
    with pytest.raises(ArtifactError, match="got neither"):
        starpilot.download(out, "absent")
    with pytest.raises(ArtifactError, match="not a model ID"):
        starpilot.download(out, "../pop23")


def test_download_tells_of_a_folder_it_cannot_read(tmp_path):
    loop = tmp_path / starpilot.artifact_name("pop23")
    with pytest.raises(WorkspaceError, match="cannot be read"):
        starpilot.download(tmp_path / ("x" * 300), "pop23")
    assert not loop.exists()
