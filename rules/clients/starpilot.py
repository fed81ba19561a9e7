"""What the StarPilot client expects: file names, the manifest's form, and its download replayed."""

import contextlib
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from rules.counting import counted
from rules.errors import ArtifactError, WorkspaceError
from rules.keeping import files
from rules.releasing import parts
from rules.releasing.namespace import id_flaw

Entry = dict[str, Any]

TEXTS = ("id", "name", "version", "series", "released")  # the client joins each of these with commas
FIELDS = (*TEXTS, "community_favorite", "uses_external_gpu")

ARTIFACTS = "Models"  # the folder, or branch, of a resource repository that artifacts are in
VERSIONS = "Versions"
LAST_IN_VERSIONS = 22  # the generation

_SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"


def artifact_name(model_id: str) -> str:
    """The file name of a model's compiled artifact. Raises ArtifactError for a bad ID."""
    if flaw := id_flaw(model_id):
        raise ArtifactError(f"{model_id!r}: not a model ID: {flaw}", fix="rename the model")
    return f"{model_id}_driving_tinygrad.pkl"


def manifest_name(release: str) -> str:
    """The file name of the manifest of `release`, such as `v23`."""
    return f"model_names_{release}.json"


def manifest_paths(release: str) -> tuple[str, ...]:
    """Where in a resource repository a client of `release` asks for its manifest, in this order.

    Up to v22 in Versions, then in the root, and never beside the artifacts; from v23 on only there.
    """
    name = manifest_name(release)
    if int(release.removeprefix("v")) <= LAST_IN_VERSIONS:
        return f"{VERSIONS}/{name}", name
    return (f"{ARTIFACTS}/{name}",)


def place(release: str, name: str) -> str:
    """Where in the release's folder the file `name` lies: flat, which is what goes into `Models`.

    Only what goes elsewhere lies in a folder, which has that one's name.
    """
    if name != manifest_name(release):
        return name
    return manifest_paths(release)[0].removeprefix(f"{ARTIFACTS}/")


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


# ---- what a client does with a resource repository


@dataclass(frozen=True)
class Served:
    """What a client fetches from: `open` gives a stream of what is at a path, or None; `where` names it."""

    where: str
    open: Callable[[str], BinaryIO | None]

    @classmethod
    def folder(cls, folder: Path) -> "Served":
        """The files of a folder on this machine."""

        def opened(path: str) -> BinaryIO | None:
            try:
                return files.opened(folder / path)
            except (FileNotFoundError, NotADirectoryError):
                return None

        return cls(str(folder), opened)

    def shown(self, path: str) -> str:
        """A path here, as a message names it."""
        return f"{self.where}/{path}"

    def read(self, path: str) -> bytes | None:
        """A list or a checksum, or as much of it as nobody needs more of; None when there is none."""
        if (stream := self.open(path)) is None:
            return None
        with stream:
            return stream.read(files.TEXT)

    def holds(self, path: str) -> bool:
        """Whether anything is at the path."""
        if (stream := self.open(path)) is None:
            return False
        stream.close()
        return True


def installed(served: Served, release: str) -> dict[str, str]:
    """What a client of `release` gets from a resource repository: sha256 (hex) by ID of its manifest.

    Raises ArtifactError where the manifest is not where that client looks, and as `download` does.
    """
    with _told(served):
        asked = manifest_paths(release)
        content = next((one for path in asked if (one := served.read(path)) is not None), None)
        if content is None:
            raise ArtifactError(
                f"{served.where}: no compatible manifest: a {release} client asks for {' and '.join(asked)}",
                fix=f"publish it as {asked[0]}",
            )
        listed = (str(entry.get("id", "")) for entry in read_manifest(content))
        return {one: _replay(served, f"{ARTIFACTS}/{artifact_name(one)}") for one in listed}


def download(base: Path, model_id: str) -> str:
    """The sha256 (hex) of the artifact that a client gets from the folder `base`, keeping no file.

    As the client: take the whole file; where there is none, fetch `.sha256`, probe `.p00`, `.p01` … until one
    is missing, concatenate, and compare the hash. Raises ArtifactError when the client would end up with
    nothing, with bytes it has no hash for although they came in parts, or, as it never hashes a whole file,
    with one that the `.sha256` beside it contradicts.
    """
    served, name = Served.folder(base), artifact_name(model_id)
    with _told(served):
        return _replay(served, name)


@contextlib.contextmanager
def _told(served: Served) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WorkspaceError(
            f"{served.where}: cannot be read: {error.strerror or error}",
            fix="check the place and permissions",
        ) from error


def _replay(served: Served, whole: str) -> str:
    shown, name = served.shown(whole), whole.rpartition("/")[2]
    if served.holds(marker := f"{whole}.chunkmanifest"):
        raise ArtifactError(
            f"{served.shown(marker)}: shadows {name}: expected no chunk marker, got one",
            fix=f"remove {served.shown(marker)}",
        )
    expected = _announced(served, f"{whole}.sha256", name)
    fetched = [whole] if served.holds(whole) else _probe(served, whole)
    if not fetched:
        raise ArtifactError(f"{shown}: expected the file or its parts, got neither", fix="build it first")
    if fetched != [whole] and not expected:
        raise ArtifactError(
            f"{shown}.sha256: expected the checksum of {counted(len(fetched), 'part')}, got nothing",
            fix="split again",
        )
    got = _fetch(served, fetched)
    if expected and got != expected:
        names = ", ".join(path.rpartition("/")[2] for path in fetched)
        raise ArtifactError(
            f"{shown}: wrong sha256 over {names}: expected {expected}, got {got}", fix="split again"
        )
    return got


def _announced(served: Served, checksum: str, name: str) -> str:
    """The sha256 that a checksum tells; empty when there is none."""
    if (content := served.read(checksum)) is None:
        return ""
    sha256, named = parts.parsed_checksum(content, served.shown(checksum))
    if named != name:
        raise ArtifactError(
            f"{served.shown(checksum)}: is of another file: expected '{name}', got '{named}'",
            fix="split again",
        )
    return sha256


def _probe(served: Served, whole: str) -> list[str]:
    names = (parts.part_name(whole, index) for index in range(parts.MOST))
    return list(itertools.takewhile(served.holds, names))


def _fetch(served: Served, paths: Sequence[str]) -> str:
    total = hashlib.sha256()
    for path in paths:
        size, stream = 0, served.open(path)
        if stream is None:
            raise ArtifactError(f"{served.shown(path)}: went away while it was read", fix="try again")
        with stream:
            while block := stream.read(parts.BUFFER):
                total.update(block)
                size += len(block)
        if not size:
            raise ArtifactError(f"{served.shown(path)}: expected 1 byte or more, got 0", fix="split again")
    return total.hexdigest()


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
