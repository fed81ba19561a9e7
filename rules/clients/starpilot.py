"""What the StarPilot client expects: file names, the manifest's form, and its download replayed."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rules.counting import counted
from rules.errors import ArtifactError, WorkspaceError
from rules.releasing import parts
from rules.releasing.namespace import id_flaw

Entry = dict[str, Any]

TEXTS = ("id", "name", "version", "series", "released")  # the client joins each of these with commas
FIELDS = (*TEXTS, "community_favorite", "uses_external_gpu")

_SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"


def artifact_name(model_id: str) -> str:
    """The file name of a model's compiled artifact. Raises ArtifactError for a bad ID."""
    if flaw := id_flaw(model_id):
        raise ArtifactError(f"{model_id!r}: not a model ID: {flaw}", fix="rename the model")
    return f"{model_id}_driving_tinygrad.pkl"


def manifest_name(release: str) -> str:
    """The file name of the manifest of `release`, such as `v23`."""
    return f"model_names_{release}.json"


def id_map_name(release: str) -> str:
    """The file name of the map from the earlier release's IDs to those of `release`."""
    return f"model_id_namespace_{release}.json"


def manifest_entry(
    model_id: str,
    *,
    name: str,
    version: str,
    series: str,
    released: str,
    community_favorite: bool = False,
    uses_external_gpu: bool = False,
) -> Entry:
    """One model in a manifest of v22 or v23, its keys in the published order.

    `version` (`v15`) is the model's behaviour, `released` an ISO date. Nothing here tells of the artifact:
    the client finds its parts and hash by name.
    """
    entry: Entry = {
        "id": model_id,
        "name": name,
        "version": version,
        "series": series,
        "released": released,
        "community_favorite": community_favorite,
    }
    return entry | ({"uses_external_gpu": True} if uses_external_gpu else {})


def manifest(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The manifest file of `entries`, in their order. Raises ArtifactError as `check_manifest` does."""
    content = _encode({"models": [dict(entry) for entry in entries]})
    check_manifest(content)
    return content


def check_manifest(content: bytes) -> list[Entry]:
    """The entries of a manifest of v22 or v23 that no client stumbles over.

    Raises ArtifactError for what `read_manifest` refuses, an empty list, an empty field or a comma in one,
    an ID out of form or given twice, a date that is none, and any field outside the schema.
    """
    entries = read_manifest(content)
    if not entries:
        raise ArtifactError(
            "manifest: expected one model or more, got none", fix="add a model to the release"
        )
    for index, entry in enumerate(entries):
        if flaw := _entry_flaw(entry):
            raise ArtifactError(
                f"manifest: models[{index}] ({entry.get('id')!r}): {flaw}", fix="correct models.toml"
            )
    _refuse_twice("manifest", [entry["id"] for entry in entries])
    _check_schema("manifest", {"models": entries})
    return entries


def read_manifest(content: bytes) -> list[Entry]:
    """The entries of any generation's manifest, with whatever fields they have.

    Raises ArtifactError for what the client reads as no manifest: bytes that are not JSON, a bare list,
    no list under `models`, an entry that is not an object.
    """
    document = _decode("manifest", content)
    if not isinstance(document, dict) or not isinstance(document.get("models"), list):
        got = f"an object with the keys {sorted(document)}" if isinstance(document, dict) else _kind(document)
        raise ArtifactError(
            f'manifest: the client reads this as no manifest: expected {{"models": [ … ]}}, got {got[:100]}',
            fix='put the list under the key "models"',
        )
    for index, entry in enumerate(document["models"]):
        if not isinstance(entry, dict):
            raise ArtifactError(
                f"manifest: models[{index}]: expected an object, got {_kind(entry)}", fix="remove it"
            )
    return list(document["models"])


def multipart_entry(model_id: str, split: parts.Parts) -> Entry:
    """One artifact in `multipart.json`: `size` (bytes) and `sha256` are those of the whole file."""
    return {
        "id": model_id,
        "filename": split.name,
        "size": split.size,
        "sha256": split.sha256,
        "parts": [path.name for path in split.parts],
    }


def multipart(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """The file `multipart.json` of `entries`, in their order.

    Raises ArtifactError for an entry outside the schema, an ID given twice, a file name that is not the
    ID's, or parts that do not run from p00 without a gap.
    """
    listed = [dict(entry) for entry in entries]
    _check_schema("multipart", listed)
    _refuse_twice("multipart", [entry["id"] for entry in listed])
    for entry in listed:
        filename = artifact_name(entry["id"])
        _refuse_other(entry["id"], "filename", filename, entry["filename"])
        names = [parts.part_name(filename, index) for index in range(len(entry["parts"]))]
        _refuse_other(entry["id"], "parts", names, entry["parts"])
    return _encode(listed)


def id_map(
    mapping: Mapping[str, str], *, source: str = "v22", target: str = "v23", suffix: str = "3"
) -> bytes:
    """The file that tells which ID of release `source` became which of `target`.

    Its form is `{"from": …, "to": …, "suffix": …, "ids": {old: new}}`, `ids` in the order of `mapping`
    (the manifest's), so equal catalogs give equal bytes. Raises ArtifactError for a bad or doubled ID.
    """
    document = {"from": source, "to": target, "suffix": suffix, "ids": dict(mapping)}
    _check_schema("id_map", document)
    _refuse_twice("id_map", list(mapping.values()))
    return _encode(document)


def download(base: Path, model_id: str) -> str:
    """The sha256 (hex) of the artifact that a client gets from the folder `base`, keeping no file.

    As the client: take the whole file; where there is none, fetch `.sha256`, probe `.p00`, `.p01` … until one
    is missing, concatenate, compare length and hash. Raises ArtifactError when the client would end up with
    nothing, with bytes it has no hash for although they came in parts, or, as it never hashes a whole file,
    with one that the `.sha256` beside it contradicts.
    """
    whole = base / artifact_name(model_id)
    try:
        return _replay(whole)
    except OSError as error:
        raise WorkspaceError(
            f"{whole}: cannot be read: {error.strerror or error}", fix="check its folder and permissions"
        ) from error


def _replay(whole: Path) -> str:
    marker = whole.with_name(f"{whole.name}.chunkmanifest")
    if marker.exists():
        raise ArtifactError(
            f"{marker}: shadows {whole.name}: expected no chunk marker, got one", fix=f"remove {marker}"
        )
    checksum = whole.with_name(f"{whole.name}.sha256")
    expected = _announced(checksum, whole.name) if checksum.exists() else ""
    fetched = [] if whole.is_file() else _probe(whole)
    if fetched and not expected:
        raise ArtifactError(
            f"{checksum}: expected the checksum of {counted(len(fetched), 'part')}, got nothing",
            fix="split again",
        )
    if not fetched and not whole.is_file():
        raise ArtifactError(f"{whole}: expected the file or its parts, got neither", fix="build it first")
    got = _fetch(fetched or [whole])
    if expected and got != expected:
        names = ", ".join(path.name for path in fetched or [whole])
        raise ArtifactError(
            f"{whole}: wrong sha256 over {names}: expected {expected}, got {got}", fix="split again"
        )
    return got


def _announced(checksum: Path, name: str) -> str:
    sha256, named = parts.read_checksum(checksum)
    if named != name:
        raise ArtifactError(
            f"{checksum}: is of another file: expected '{name}', got '{named}'", fix="split again"
        )
    return sha256


def _probe(whole: Path) -> list[Path]:
    found: list[Path] = []
    while len(found) < parts.MOST:
        part = whole.with_name(parts.part_name(whole.name, len(found)))
        if not part.is_file():
            break
        found.append(part)
    return found


def _fetch(files: Sequence[Path]) -> str:
    promised = [path.stat().st_size for path in files]
    if 0 in promised:
        raise ArtifactError(f"{files[promised.index(0)]}: expected 1 byte or more, got 0", fix="split again")
    sha256, size = parts.digest(files)
    if size != sum(promised):
        raise ArtifactError(
            f"{files[0].parent}: changed while it was read: "
            f"expected {counted(sum(promised), 'byte')}, got {size:,}",
            fix="try again",
        )
    return sha256


def _entry_flaw(entry: Entry) -> str:
    """What is wrong with one manifest entry; empty when nothing."""
    if missing := [field for field in FIELDS[:-1] if field not in entry]:
        return f"expected the field {missing[0]!r}, got nothing"
    if extra := sorted(set(entry) - set(FIELDS)):
        return f"expected no field but {', '.join(FIELDS)}, got {extra[0]!r}"
    for field in TEXTS:
        value = entry[field]
        if not isinstance(value, str) or not value.strip() or "," in value:
            return f"{field}: expected a text that is not empty and has no comma, got {value!r}"
    return id_flaw(entry["id"]) or _date_flaw(entry["released"])


def _date_flaw(text: str) -> str:
    from datetime import date

    try:
        return (
            ""
            if date.fromisoformat(text).isoformat() == text
            else f"released: expected YYYY-MM-DD, got {text!r}"
        )
    except ValueError:
        return f"released: expected a date of the calendar as YYYY-MM-DD, got {text!r}"


def _refuse_twice(file: str, names: Sequence[str]) -> None:
    doubled = [name for name, count in Counter(names).items() if count > 1]
    if doubled:
        raise ArtifactError(
            f"{file}: '{doubled[0]}' stands {names.count(doubled[0])} times: expected each ID once",
            fix="rename one of the models",
        )


def _refuse_other(model_id: str, field: str, expected: object, got: object) -> None:
    if got != expected:
        raise ArtifactError(
            f"multipart: {model_id}: {field}: expected {expected}, got {got}", fix="split again"
        )


def _kind(value: object) -> str:
    kinds = {list: "a bare list", dict: "an object", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _unique(pairs: list[tuple[str, Any]]) -> Entry:
    for key, count in Counter(key for key, _ in pairs).items():
        if count > 1:
            raise ValueError(f"the key {key!r} stands {count} times in one object")
    return dict(pairs)


def _decode(file: str, content: bytes) -> Any:
    try:
        return json.loads(content, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(
            f"{file}: expected JSON, got {counted(len(content), 'byte')} that are not: {error}",
            fix="fetch it again",
        ) from error


def _encode(document: object) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _check_schema(file: str, document: object) -> None:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import best_match

    schema = json.loads((_SCHEMAS / f"{file}.schema.json").read_bytes())
    error = best_match(Draft202012Validator(schema).iter_errors(document))
    if error is not None:
        raise ArtifactError(f"{file}: {error.json_path}: {error.message[:300]}", fix="correct models.toml")
