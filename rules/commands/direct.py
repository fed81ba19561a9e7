"""A model compiled straight from files, or with other settings: a catalog of one, beside the real one."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rules.catalog import Catalog, FlagSet, Model, Monitoring, Source
from rules.commands.arguments import UsageError
from rules.errors import CatalogError, SourceError
from rules.keeping.digests import sha256_of
from rules.networks import behaviour
from rules.releasing.namespace import id_flaw
from rules.sources.local import role_of
from rules.steps.preflight import MONITORING, POLICIES, SUPERCOMBO, VISION

GPU_SET = "usbgpu"
FORMATS = {"supercombo": (SUPERCOMBO,), "split": (VISION, *POLICIES)}
UNPUBLISHED = {"series": "Direct", "released": "2000-01-01"}  # no release holds such a model


@dataclass(frozen=True)
class Wish:
    """What the user typed of one model; None where they said nothing."""

    id: str
    form: str | None = None
    version: str | None = None
    folder: Path | None = None
    onnx: tuple[Path, ...] = ()
    gpu: bool = False

    @property
    def from_files(self) -> bool:
        """Whether the ONNX files are named here, not in the catalog."""
        return self.folder is not None or bool(self.onnx)


def suffices(wish: Wish, model: Model | None) -> bool:
    """Whether the catalog's model is already what is wished. Raises UsageError for another format."""
    if model is None or wish.from_files:
        return False
    form = _form(model)
    if wish.form not in (None, form):
        raise UsageError(
            f"{wish.id}: --input-format: models.toml has it as {form}, got {wish.form}",
            fix="leave the option out, or name the files with --input-dir DIR",
        )
    return wish.version in (None, model.version) and (model.uses_external_gpu or not wish.gpu)


def _form(model: Model) -> str:
    options = model.source.options
    told = str(options.get("format") or model.type or options.get("architecture", ""))
    return "supercombo" if "supercombo" in told else "split"


def model_catalog(wish: Wish, catalog: Catalog, staging: Path) -> Catalog:
    """A catalog of the wished model alone; `staging` is a folder for links to its ONNX files.

    Raises UsageError, SourceError or CatalogError when something is missing or does not fit.
    """
    if flaw := id_flaw(wish.id):
        raise UsageError(f"--model {wish.id}: not a model ID: {flaw}", fix="use a to z, 0 to 9, - and _")
    if wish.version is not None and not re.fullmatch(r"v[0-9]+", wish.version):
        raise UsageError(f"--version: expected vNN, got {wish.version}", fix="write --version v11")
    known = catalog.models.get(wish.id)
    if known is not None and not wish.from_files:
        model = replace(known, version=wish.version or known.version, since=None)
    else:
        files = _driving_files(wish)
        model = _model(wish, catalog, known, files, _staged(files, staging))
    if wish.gpu and not model.uses_external_gpu:
        model = replace(model, flags=_gpu_flags(catalog), uses_external_gpu=True)
    return replace(catalog, models={model.id: model}, releases={}, monitoring=None)


def monitoring_catalog(wish: Wish, catalog: Catalog, staging: Path) -> Catalog:
    """A catalog of driver monitoring alone, from the ONNX file in the wish."""
    files = _monitoring_files(wish)
    source, defaults = _staged(files, staging), catalog.defaults
    known = catalog.monitoring or Monitoring(source, defaults.flags, defaults.toolchain, defaults.cameras)
    return replace(catalog, models={}, releases={}, monitoring=replace(known, source=source))


def _gpu_flags(catalog: Catalog) -> FlagSet:
    if GPU_SET not in catalog.flag_sets:
        raise CatalogError(
            f"{catalog.path.name}: flags.{GPU_SET}: --gpu needs this flag set, which is not there",
            fix=f"add [flags.{GPU_SET}]",
        )
    return catalog.flag_sets[GPU_SET]


def _model(
    wish: Wish, catalog: Catalog, known: Model | None, files: Mapping[str, Path], source: Source
) -> Model:
    version = wish.version or (known and known.version) or behaviour.suggested(files)
    if known is not None:
        return replace(known, version=version, source=source, since=None, type=None)
    defaults = catalog.defaults
    return Model(
        id=wish.id,
        name=wish.id,
        version=version,
        community_favorite=False,
        since=None,
        type=None,
        flags=_flags_for(catalog, SUPERCOMBO in files),
        toolchain=defaults.toolchain,
        source=source,
        cameras=defaults.cameras,
        model_size=defaults.model_size,
        frame_skip=None,
        contract="warp",
        uses_external_gpu=False,
        series=UNPUBLISHED["series"],
        released=UNPUBLISHED["released"],
    )


def _flags_for(catalog: Catalog, is_supercombo: bool) -> FlagSet:
    """The default set, or its twin for supercombos where the catalog has one."""
    default = catalog.defaults.flags
    twin = f"{default.name}-supercombo"
    return catalog.flag_sets.get(twin, default) if is_supercombo else default


def adoption(wish: Wish, model: Model) -> str:
    """The command that takes a model which was built from files into the catalog, as it was built."""
    files = sorted(Path(str(model.source.options["path"])).iterdir())
    words = [str(path.resolve()) for path in files]
    words += ["--id", model.id, "--version", model.version]
    words += ["--gpu"] if model.uses_external_gpu else ["--flags", model.flags.name]
    return shlex.join(["doit", "add", *words])


# ---- which files


def _driving_files(wish: Wish) -> dict[str, Path]:
    roles = [role for form, names in FORMATS.items() for role in names if wish.form in (None, form)]
    if wish.onnx:
        files = _by_role(wish.onnx, roles, alone=SUPERCOMBO)
    else:
        prefixes = (f"{wish.id}_", "big_" if wish.gpu else "")
        files = _in_folder(wish, roles, prefixes)
    if SUPERCOMBO in files and len(files) > 1:
        raise UsageError(
            f"{wish.id}: both a supercombo and a split model are there: {_names(files.values())}",
            fix="add --input-format split or --input-format supercombo",
        )
    return files


def _monitoring_files(wish: Wish) -> dict[str, Path]:
    if wish.onnx:
        return _by_role(wish.onnx, [MONITORING], alone=MONITORING)
    return _in_folder(wish, [MONITORING], ("",))


def _by_role(files: Iterable[Path], roles: Sequence[str], *, alone: str) -> dict[str, Path]:
    """Files the user named one by one; a single one need not tell by its name that it is the `alone`."""
    files = list(files)
    found: dict[str, Path] = {}
    for path in files:
        if not path.is_file():
            raise SourceError(f"{path}: no such file", fix="correct --onnx")
        role = role_of(path, None) or (alone if len(files) == 1 else None)
        if role is None or role not in roles:
            wanted = ", ".join(f"{one}.onnx" for one in roles)
            raise SourceError(
                f"{path}: expected one of {wanted}, got {role or path.name}",
                fix="rename it so that its name ends like that, or correct --input-format",
            )
        if role in found:
            raise SourceError(f"{path}: {found[role]} is a {role} already", fix="name each file once")
        found[role] = path
    return found


def _in_folder(wish: Wish, roles: Sequence[str], prefixes: Sequence[str]) -> dict[str, Path]:
    """Files that bear the model's ID, or plain names; never a file because nothing else is there."""
    folder = wish.folder
    assert folder is not None
    if not folder.is_dir():
        raise SourceError(f"{folder}: no such folder", fix="correct --input-dir")
    for prefix in prefixes:
        found = {role: folder / f"{prefix}{role}.onnx" for role in roles}
        if present := {role: path for role, path in found.items() if path.is_file()}:
            return present
    raise _nothing_fits(wish, folder, [f"{prefix}{_pattern(roles)}" for prefix in prefixes])


def _pattern(roles: Sequence[str]) -> str:
    return f"{roles[0]}.onnx" if len(roles) == 1 else "driving_*.onnx"


def _nothing_fits(wish: Wish, folder: Path, wanted: list[str]) -> SourceError:
    staged = sorted(path for path in folder.glob("*.onnx") if not path.name.startswith("._"))
    if not staged:
        return SourceError(f"{folder}: no .onnx file is in it", fix=f"put {wanted[0]} there")
    listed = ", ".join(f"{path} (sha256 {sha256_of(path)})" for path in staged)
    what = "--dm" if wish.id == "monitoring" else f"--model {wish.id}{' --gpu' if wish.gpu else ''}"
    again = " ".join(["models", what, *(f"--onnx {path}" for path in staged)])
    return SourceError(
        f"{wish.id}: no {' or '.join(wanted)} is in {folder}; found {listed}",
        fix=f"if that is the model: {again}",
    )


def _names(paths: Iterable[Path]) -> str:
    return ", ".join(path.name for path in paths)


def _staged(files: Mapping[str, Path], staging: Path) -> Source:
    """The files under the names of their roles, as a source of the catalog."""
    for role, path in files.items():
        (staging / f"{role}.onnx").symlink_to(path.resolve())
    return Source("file", {"path": str(staging)})
