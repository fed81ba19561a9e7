"""The console script `models`: what the field types today, as tasks of the catalog."""

import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from doit.cmd_base import ModuleTaskLoader
from doit.cmdparse import CmdOption
from doit.doit_cmd import DoitMain
from doit.exceptions import InvalidDodoFile

from rules import flags
from rules.catalog import Catalog
from rules.commands import delivery, direct
from rules.commands.arguments import HELP, Parser, UsageError, option
from rules.commands.command import CATALOG, INTERRUPTED
from rules.commands.direct import Wish
from rules.errors import CatalogError, YardError, printable, refused
from rules.graph import MONITORING
from rules.releasing import parts
from rules.releasing.namespace import id_flaw
from rules.tasks import Yard

STAGED = Path("uncompiledmodels")
OPTIONS = (
    option("model", "build this model", kind=list),
    option("dm", "build the four driver-monitoring files"),
    option("list", "list the models of the catalog; each ID is an option, too: --ID"),
    option("input_format", "kind of the ONNX files [default: as they say]", kind=str, among=direct.FORMATS),
    option("input_dir", f"folder of ONNX files [default: {STAGED}, for a model of no catalog]", kind=str),
    option("onnx", "an ONNX file to build from, whatever its name; may be repeated", kind=list),
    option("output_dir", "copy what was built there", kind=str),
    option(
        "version", "behaviour version vNN [default: as in the catalog, else as the files suggest]", kind=str
    ),
    option("gpu", "build for an external GPU"),
    option("external_gpu", "the same as --gpu"),
    option("force", "build anew, even what is up to date"),
    option("split_artifact", "only split this file into parts", kind=str),
    HELP,
)
NEEDS_NO_CATALOG = ("--split-artifact", "--help", "-h")
PROGRAM = "models"
LISTS = "models --list lists the models, models --help the options"


def main() -> int:
    """The entry point; returns the exit code, and tells every failure in a sentence on stderr."""
    try:
        return _main(sys.argv[1:])
    except (YardError, InvalidDodoFile) as error:
        print(f"ERROR: {error}", file=sys.stderr)
    except OSError as error:
        print(f"ERROR: {refused(error, PROGRAM)}", file=sys.stderr)
    except KeyboardInterrupt:
        return INTERRUPTED
    return YardError.exit_code


def _main(words: Sequence[str]) -> int:
    # A file can be split, and help be given, beside a catalog that is not there or is wrong.
    bare = any(word.partition("=")[0] in NEEDS_NO_CATALOG for word in words)
    yard = None if bare else _yard()
    options, ids = _parse(words, yard.catalog.models if yard else ())
    if options["help"]:
        print(_help())
        return 0
    if options["split_artifact"]:
        return _split(Path(options["split_artifact"]), options)
    yard = yard or _yard()
    _check_output(options["output_dir"])
    if options["list"]:
        return _list(yard)
    if options["dm"]:
        return _monitoring(yard, options)
    if not ids:
        raise UsageError(
            f"{PROGRAM}: nothing to build is named", fix=f"write --ID, --model ID or --dm; {LISTS}"
        )
    return _models(yard, ids, options)


def _yard() -> Yard:
    """Of this folder's catalog, else of the one that came with the program."""
    own = Path(__file__).resolve().parent.parent / CATALOG
    for path in (Path(CATALOG), own):
        if path.exists():
            return Yard(path)
    raise CatalogError(f"{Path.cwd()}: {CATALOG} is not here", fix=f"go to the folder that holds {CATALOG}")


# ---- the command line


def _parse(words: Sequence[str], known: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """Options by name, and the IDs, of --model and of --ID alike."""
    taken = {one["long"] for one in OPTIONS}
    own = [one for one in known if one not in taken]
    own += [one for one in _ids_of_files(words, taken) if one not in own]
    id_options = [{**option(f"id:{one}", ""), "long": one} for one in own]
    parser = Parser(PROGRAM, [CmdOption(one) for one in (*OPTIONS, *id_options)])
    options, operands = parser.parse(words)
    if operands:
        near = flags.nearest(operands[0], [*own, *taken])
        fix = f"did you mean --{near}? else {LISTS}" if near else LISTS
        raise UsageError(f"{PROGRAM}: unexpected {operands[0]}", fix=fix)
    options["gpu"] = options["gpu"] or options["external_gpu"]
    return options, [*options["model"], *(one for one in own if options[f"id:{one}"])]


def _ids_of_files(words: Sequence[str], taken: Iterable[str]) -> list[str]:
    """IDs that no catalog knows, named as options of their own (`--lebowski`) beside files to build from."""
    names = [word.partition("=")[0] for word in words]
    if not STAGED.is_dir() and not {"--input-dir", "--onnx"} & {*names}:
        return []
    meant = (word.removeprefix("--") for word in words if word.startswith("--"))
    return [one for one in meant if not id_flaw(one) and flags.nearest(one, taken) is None]


def _check_output(named: str | None) -> None:
    """Before hours of compiling: the finished files must have a place to go. Raises UsageError."""
    for place in (Path(named), *Path(named).absolute().parents) if named else ():
        if place.exists():
            if not place.is_dir():
                raise UsageError(
                    f"{PROGRAM}: --output-dir: expected a folder, got the file {place}", fix="name a folder"
                )
            return


def _help() -> str:
    lines = [f"{PROGRAM}: build, split and list driving-model artifacts", ""]
    lines += [f"  {one.help_param():<28} {one.help}" for one in map(CmdOption, OPTIONS)]
    return "\n".join([*lines, "", "  --ID is --model ID, for every ID that --list shows"])


def _wish(model_id: str, yard: Yard, options: dict[str, Any]) -> Wish:
    onnx = tuple(Path(one) for one in options["onnx"])
    folder = Path(options["input_dir"]) if options["input_dir"] else None
    if not onnx and folder is None and model_id not in yard.catalog.models:
        if not STAGED.is_dir():
            raise _unknown(model_id, yard)
        folder = STAGED
    return Wish(model_id, options["input_format"], options["version"], folder, onnx, options["gpu"])


def _unknown(model_id: str, yard: Yard) -> UsageError:
    near = flags.nearest(model_id, yard.catalog.models)
    meant = f"did you mean {near}? else " if near else "models --list lists the models; else "
    return UsageError(
        f"{model_id}: no such model in {yard.catalog.path.name}, and no folder {STAGED} is here",
        fix=f"{meant}name its ONNX files with --input-dir DIR or --onnx FILE",
    )


# ---- what it does


def _list(yard: Yard) -> int:
    models = yard.catalog.models.values()
    width = max((len(model.id) for model in models), default=0)
    for model in models:
        print(f"{model.id:<{width}}  {model.version:<4} {model.name}")
    return 0


def _split(file: Path, options: dict[str, Any]) -> int:
    made = parts.split(file, Path(options["output_dir"] or file.parent), force=options["force"])
    for path in (*made.parts, made.checksum):
        print(printable(path))
    return 0


def _models(yard: Yard, ids: Sequence[str], options: dict[str, Any]) -> int:
    wishes = [_wish(one, yard, options) for one in dict.fromkeys(ids)]
    if all(direct.suffices(wish, yard.catalog.models.get(wish.id)) for wish in wishes):
        return _build(yard, [_last_task(yard, wish.id) for wish in wishes], options)
    if len(wishes) > 1:
        named = ", ".join(wish.id for wish in wishes)
        raise UsageError(f"{PROGRAM}: {named}: these options are for one model", fix="name one at a time")
    (wish,) = wishes
    with tempfile.TemporaryDirectory() as staging:
        catalog = direct.model_catalog(wish, yard.catalog, Path(staging))
        alone, model = _beside(yard, catalog), catalog.models[wish.id]
        if wish.version is None and wish.id not in yard.catalog.models:
            print(
                f"{wish.id}: behaviour version {model.version}, as its files suggest; --version says another"
            )
        code = _build(alone, [_last_task(alone, wish.id)], options)
        if code == 0 and wish.id not in yard.catalog.models:
            print(f"to keep it in {yard.catalog.path.name}: {direct.adoption(wish, model)}")
        return code


def _monitoring(yard: Yard, options: dict[str, Any]) -> int:
    onnx = tuple(Path(one) for one in options["onnx"])
    folder = Path(options["input_dir"]) if options["input_dir"] else None
    if yard.catalog.monitoring is not None and not onnx and folder is None:
        return _build(yard, [MONITORING], options)
    wish = Wish(MONITORING, folder=folder or STAGED, onnx=onnx)
    with tempfile.TemporaryDirectory() as staging:
        alone = _beside(yard, direct.monitoring_catalog(wish, yard.catalog, Path(staging)))
        return _build(alone, [MONITORING], options)


def _beside(yard: Yard, catalog: Catalog) -> Yard:
    """A yard with a workspace of its own, so that the real one's records stay true."""
    return Yard(catalog, yard.workspace.path("direct"))


def _last_task(yard: Yard, model_id: str) -> str:
    return next(task for task in (f"parts:{model_id}", f"pkl:{model_id}") if task in yard.graph.steps)


def _build(yard: Yard, tasks: list[str], options: dict[str, Any]) -> int:
    """Run the tasks as `doit` does, then hand over what they made."""
    loader = ModuleTaskLoader({"DOIT_CONFIG": yard.config, "task_graph": yard.tasks})
    always = ["--always-execute"] if options["force"] else []
    if code := DoitMain(loader, config_filenames=()).run(["run", *always, *tasks]):
        return int(code)
    for task in tasks:
        names = dict.fromkeys((task.replace("parts:", "pkl:"), task))
        files = delivery.outputs([yard.graph.steps[name] for name in names], yard.workspace)
        if options["output_dir"]:
            files = delivery.deliver(files, Path(options["output_dir"]))
        for path in files:
            print(printable(path))
    return 0
