"""models.toml as a typed catalog, refused as a whole, with every error at once, when anything in it is wrong.

A validated catalog is kept as flat JSON under the digest of everything that made it, so that an idle `doit`
neither parses TOML nor loads a JSON Schema; both ways end in `_build`, so that they cannot differ.
"""

import contextlib
import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rules import flags, layouts
from rules.keeping import files
from rules.url import holds_secrets

Table = dict[str, Any]

PINS = ".lock.json"  # instead of .toml: the file of pins beside a catalog
SCHEMA = Path(__file__).resolve().parent.parent / "schemas" / "models.schema.json"
CHECKED_BY = ("catalog.py", "faults.py", "flags.py", "layouts.py", "releasing/namespace.py")
MADE_OF = (*(Path(__file__).parent / name for name in CHECKED_BY), SCHEMA)
KIND_SHOWN_BY = {"path": "file", "ref": "git", "members": "wheel", "architecture": "generated"}


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera's frame, in pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Which tinygrad compiles: a release, or a folder (relative to models.toml)."""

    name: str
    tinygrad: str | None
    path: str | None


@dataclass(frozen=True, slots=True)
class FlagSet:
    """Environment variables of a compile, sorted by name, `extends` resolved; `requires` is of a builder."""

    name: str
    values: dict[str, str]
    requires: str | None
    tolerance: dict[str, float] = field(default_factory=dict)  # by head; see rules/gates/numbers.py

    @property
    def expected_device(self) -> str:
        """The device that DEV names: "USB+AMD:LLVM" is AMD."""
        return flags.device(self.values["DEV"])

    @property
    def warp_device(self) -> str:
        """The device that WARP_DEV names, else the expected one."""
        return flags.device(self.values.get("WARP_DEV", self.values["DEV"]))


@dataclass(frozen=True, slots=True)
class Source:
    """Where ONNX files come from; `options` are the keys that schemas/models.schema.json lists for the kind.

    file: path, format. git: ref, format, maybe repository. wheel: name, version, sha256, members by role.
    generated: architecture, seed, width.
    """

    kind: str
    options: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """One driving model: `version` is behaviour (vNN), `model_size` is (width, height) in pixels.

    `type` and `frame_skip` are None where the files decide: a model with 99 or more steps of features uses a
    frame skip of 1, any other that of the catalog's defaults.
    """

    id: str
    name: str
    version: str
    series: str
    released: str
    community_favorite: bool
    since: str | None
    type: str | None
    flags: FlagSet
    toolchain: Toolchain
    source: Source
    cameras: tuple[Camera, ...]
    model_size: tuple[int, int]
    frame_skip: int | None
    contract: str
    uses_external_gpu: bool
    layout: str = layouts.RELEASED
    feed: Mapping[str, list[float]] = field(default_factory=dict)  # of a generic one: input → [low, high]
    shapes: Mapping[str, list[int]] = field(default_factory=dict)  # of inputs that their files leave open
    skip_gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The driver-monitoring model."""

    source: Source
    flags: FlagSet
    toolchain: Toolchain
    cameras: tuple[Camera, ...]
    skip_gates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """What verification allows: a pose in metres and radians a second, an artifact's size in its weights'."""

    translation: float = 200.0
    rotation: float = 10.0
    least_std: float = 1e-5
    std_factor: float = 10.0  # of the bounds above, for the norms of the standard deviations
    least_size: float = 0.5
    most_size: float = 4.0
    slack: int = 16 * 2**20  # bytes of kernels and structure, whatever the weights


@dataclass(frozen=True, slots=True)
class Release:
    """A namespace of published files; `origin` is the release whose models it holds too.

    `ids` gives published names to model IDs; `after` says which published ID stands right after which.
    `parts` is whether every artifact is published in parts, or only one that is too large for a repository;
    `allow` names what is published though it would else be refused.
    """

    name: str
    contract: str
    origin: str | None
    suffix: str
    ids: dict[str, str]
    after: dict[str, str] = field(default_factory=dict)
    parts: str = "large"
    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Defaults:
    """What a model has when it does not say; `flags` is the set chosen for this machine."""

    flags: FlagSet
    toolchain: Toolchain
    cameras: tuple[Camera, ...]
    model_size: tuple[int, int]
    frame_skip: int
    memory_gb: int | None = None  # that a child may take, instead of what its weights let expect


@dataclass(frozen=True, slots=True)
class Catalog:
    """models.toml; every table in the order of the file."""

    path: Path
    defaults: Defaults
    toolchains: dict[str, Toolchain]
    flag_sets: dict[str, FlagSet]
    models: dict[str, Model]
    releases: dict[str, Release]
    monitoring: Monitoring | None
    store: Table = field(default_factory=dict)  # as it stands in the file; see rules.keeping.remote.settings
    limits: Limits = field(default_factory=Limits)

    @property
    def default_tasks(self) -> list[str]:
        """What a plain `doit` makes: every release, driver monitoring, and models that no release holds."""
        released = {model.id for release in self.releases.values() for model in self.members(release)}
        others = [f"pkl:{one}" for one in self.models if one not in released]
        monitoring = ["monitoring"] if self.monitoring else []
        return [*(f"release:{name}" for name in self.releases), *monitoring, *others]

    def members(self, release: Release) -> tuple[Model, ...]:
        """The models of a release: its origin's first, then those new in it, in file order."""
        inherited = self.members(self.releases[release.origin]) if release.origin else ()
        return inherited + tuple(model for model in self.models.values() if model.since == release.name)


def load(path: Path, *, machine: str | None = None, cache: Path | None = None, keep: bool = True) -> Catalog:
    """The catalog in the file `path`, with the default flag set of `machine` (`uname -m`; None is this one).

    `cache` is a file to keep the validated catalog in; one that is damaged or of other bytes is rewritten,
    unless `keep` is false.
    Raises CatalogError, one line for each error: `models.toml:LINE: KEY: found X; expected Y`.
    """
    try:
        content = files.read(path)
    except OSError as error:
        from rules import faults

        raise faults.unreadable(path, error) from None
    machine = machine or platform.machine()
    digest = _digest(content, machine)
    tree = _cached(cache, digest) if cache else None
    if tree is None:
        tree = _validated(content, path.name, machine)
        if cache and keep:
            _keep(cache, digest, tree)
    return _build(path, tree)


# ---- the cache: a digest of what made it, a digest of the rest, the rest


def _digest(content: bytes, machine: str) -> str:
    parts = [content, machine.encode(), *(file.read_bytes() for file in MADE_OF)]
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _cached(cache: Path, digest: str) -> Table | None:
    try:
        made_of, _, rest = files.read(cache).partition(b"\n")
    except OSError:
        return None
    whole, _, body = rest.partition(b"\n")
    if made_of != digest.encode() or whole != hashlib.sha256(body).hexdigest().encode():
        return None
    tree: Table = json.loads(body)
    return tree


def _keep(cache: Path, digest: str, tree: Table) -> None:
    text = json.dumps(tree, ensure_ascii=False, separators=(",", ":"))
    if holds_secrets(text):  # which stay in the one file that its owner wrote them into
        with contextlib.suppress(OSError):
            cache.unlink()
        return
    body = text.encode()
    with contextlib.suppress(OSError):  # a catalog that cannot be kept is still a catalog
        files.write_bytes(
            cache, b"\n".join((digest.encode(), hashlib.sha256(body).hexdigest().encode(), body))
        )


# ---- from the flat tree to the dataclasses


def _build(path: Path, tree: Table) -> Catalog:
    toolchains = {name: Toolchain(name, *row) for name, row in tree["toolchains"].items()}
    sets = {name: FlagSet(name, *row) for name, row in tree["flags"].items()}
    cameras = [tuple(Camera(*_pixels(size)) for size in row) for row in tree["cameras"]]
    models = {}
    for model_id, row in tree["models"].items():
        head, flag_set, toolchain, source, frames, size, tail = row
        parts = (sets[flag_set], toolchains[toolchain], Source(*source), cameras[frames], tuple(size))
        *others, skipped = tail
        models[model_id] = Model(model_id, *(*head, *parts, *others, tuple(skipped)))
    flag_set, toolchain, frames, size, *rest = tree["defaults"]
    defaults = Defaults(sets[flag_set], toolchains[toolchain], cameras[frames], tuple(size), *rest)
    releases = {}
    for name, (*row, allowed) in tree["release"].items():
        releases[name] = replace(Release(name, *row), allow=tuple(allowed))
    monitoring = None
    if tree["monitoring"]:
        source, flag_set, toolchain, frames, skipped = tree["monitoring"]
        places = (sets[flag_set], toolchains[toolchain], cameras[frames])
        monitoring = Monitoring(Source(*source), *places, tuple(skipped))
    others = (monitoring, tree["store"], Limits(**tree["limits"]))
    return Catalog(path, defaults, toolchains, sets, models, releases, *others)


def _pixels(size: str) -> tuple[int, int]:
    width, _, height = size.partition("x")
    return int(width), int(height)


# ---- from TOML to the flat tree


def _validated(content: bytes, file: str, machine: str) -> Table:
    from rules import faults  # an idle run needs neither TOML nor the checks

    return _flat(faults.checked(content, file, machine), machine)


def _flat(raw: Table, machine: str) -> Table:
    """The tree that the cache holds: references by name, each list of cameras once."""
    defaults = raw["defaults"] | {"flags": _default_flags(raw["defaults"]["flags"], machine)}
    defaults.setdefault("toolchain", "default")
    tables = raw["models"].values()
    lists = [defaults["cameras"], *(table["cameras"] for table in tables if "cameras" in table)]
    monitoring = raw.get("monitoring")
    lists += [monitoring["cameras"]] if monitoring and "cameras" in monitoring else []
    cameras = [list(row) for row in dict.fromkeys(map(tuple, lists))]
    releases = raw.get("release", {})
    return {
        "toolchains": {
            name: [table.get(key) for key in ("tinygrad", "path")]
            for name, table in raw["toolchains"].items()
        },
        "flags": {
            name: [*flags.resolve(raw["flags"], name), flags.tolerance(raw["flags"], name)]
            for name in raw["flags"]
        },
        "cameras": cameras,
        "defaults": [
            defaults["flags"],
            defaults["toolchain"],
            cameras.index(defaults["cameras"]),
            _pixels(defaults["model_size"]),
            defaults["frame_skip"],
            defaults.get("memory_gb"),
        ],
        "models": {
            name: _model_row(table, defaults, cameras, releases) for name, table in raw["models"].items()
        },
        "release": {name: _release_row(releases, name) for name in releases},
        "monitoring": _monitoring_row(monitoring, defaults, cameras) if monitoring else None,
        "store": raw.get("store", {}),
        "limits": _limits(raw.get("verify", {})),
    }


def _model_row(table: Table, defaults: Table, cameras: list[list[str]], releases: Table) -> list[Any]:
    whole = defaults | table
    since = table.get("since")
    layout = table.get("layout", layouts.RELEASED)
    contract = (
        table.get("contract")
        or (layouts.LIMITS[layout].contract if layout in layouts.LIMITS else None)
        or (flags.inherited(releases, since, "from", "contract") if since else None)
        or "warp"
    )
    texts = [table[key] for key in ("name", "version", "series", "released")]
    return [
        [*texts, table.get("community_favorite", False), since, table.get("type")],
        whole["flags"],
        whole["toolchain"],
        _source_row(table["source"], defaults),
        cameras.index(whole["cameras"]),
        _pixels(whole["model_size"]),
        [
            table.get("frame_skip"),
            contract,
            table.get("uses_external_gpu", False),
            layout,
            table.get("feed", {}),
            table.get("shapes", {}),
            table.get("skip_gates", []),
        ],
    ]


def _limits(table: Table) -> Table:
    """`Limits` by its own names."""
    sizes = {"least": "least_size", "most": "most_size"}
    named = {sizes.get(name, name): value for name, value in table.get("size", {}).items()}
    return {**table.get("pose", {}), **named}


def _monitoring_row(table: Table, defaults: Table, cameras: list[list[str]]) -> list[Any]:
    whole = defaults | table
    source = _source_row(table["source"], defaults)
    skipped = table.get("skip_gates", [])
    return [source, whole["flags"], whole["toolchain"], cameras.index(whole["cameras"]), skipped]


def _source_row(table: Table, defaults: Table) -> list[Any]:
    shown_kind = next((kind for key, kind in KIND_SHOWN_BY.items() if key in table), None)
    kind = table.get("kind", shown_kind)
    shared = {key: defaults[key] for key in ("repository",) if kind == "git" and key in defaults}
    return [kind, shared | {key: value for key, value in table.items() if key != "kind"}]


def _release_row(releases: Table, name: str) -> list[Any]:
    table = releases[name]
    return [
        flags.inherited(releases, name, "from", "contract"),
        table.get("from"),
        table.get("suffix", ""),
        table.get("ids", {}),
        table.get("after", {}),
        flags.inherited(releases, name, "from", "parts") or "large",
        table.get("allow", []),
    ]


def _default_flags(flag_set: str | dict[str, str], machine: str) -> str:
    return flag_set[machine] if isinstance(flag_set, dict) else flag_set
