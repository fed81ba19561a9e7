"""What our commands start from: options anywhere, a sentence for each failure, an exit code."""

import io
import os
import sys
import traceback
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doit.cmd_base import Command as DoitCommand
from doit.cmdparse import CmdOption, DefaultUpdate
from doit.exceptions import InvalidCommand

from rules.commands.arguments import HELP, Parser, UsageError, option, typed
from rules.errors import YardError, refused

if TYPE_CHECKING:
    from rules.tasks import Yard

CATALOG = "models.toml"
DODO = "dodo.py"
DATABASE = ".doit.db"  # doit's own default
UNUSABLE = 3  # doit's code for tasks that cannot be loaded
INTERRUPTED = 130  # 128 + SIGINT, as shells report it
WORKSPACE = option(
    "workspace",
    "the folder to build in [default: MODELS_WORKSPACE, else artifacts/ beside models.toml]",
    kind=str,
)


class NoCatalog(UsageError):
    """There is no catalog here."""


class AnyOrder(DoitCommand):  # type: ignore[misc]
    """A doit command that takes options anywhere and tells failures in a sentence; a base for doit's own."""

    _cmdparser: Parser | None
    needs_dodo = True
    _dodo = DODO

    def __init__(self, *args: Any, bin_name: str = "doit", **kwargs: Any) -> None:
        # Run by `python -m doit`, doit calls itself "-m".
        super().__init__(*args, bin_name="doit" if bin_name.startswith("-") else bin_name, **kwargs)

    def get_options(self) -> list[CmdOption]:
        """The command's options, --help, and --workspace when it loads tasks."""
        shared = (WORKSPACE, HELP) if hasattr(self, "loader") else (HELP,)
        return [*super().get_options(), *map(CmdOption, shared)]

    def _commands(self) -> Collection[str]:
        return self.loader.cmd_names if hasattr(self, "loader") else ()

    @property
    def cmdparser(self) -> Parser:
        """The parser of the command's own options."""
        if self._cmdparser is None:
            self._cmdparser = Parser(f"{self.bin_name} {self.name}", self.get_options(), self._commands())
            self._cmdparser.overwrite_defaults(self.config_vals)
        return self._cmdparser

    def parse(self, in_args: list[str]) -> tuple[DefaultUpdate, list[str]]:
        """Options by name, and operands. Raises UsageError."""
        options: DefaultUpdate
        options, operands = self.cmdparser.parse(in_args)
        return options, operands

    def parse_execute(self, in_args: list[str]) -> int:
        """doit's way in; returns the exit code."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):  # a name that is no UTF-8 is shown, and ends nothing
                stream.reconfigure(errors="backslashreplace")
        try:
            code = self._parse_and_execute(in_args)
            sys.stdout.flush()
            return code
        except YardError as error:
            print(f"ERROR: {error}", file=sys.stderr)
            return error.exit_code
        except BrokenPipeError:
            # The reader (`| head`) has seen enough; Python would complain when it flushes stdout at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except OSError as error:
            print(f"ERROR: {refused(error, f'{self.bin_name} {self.name}')}", file=sys.stderr)
            return YardError.exit_code
        except KeyboardInterrupt:
            return INTERRUPTED
        except Exception as error:
            if (fault := _fault_of_dodo(error, self._dodo)) is None:
                raise
            print(f"ERROR: {fault}", file=sys.stderr)
            return UNUSABLE

    def _parse_and_execute(self, in_args: list[str]) -> int:
        options, operands = self.parse(in_args)
        if options.pop("help"):
            print(self.help())
            return 0
        if hasattr(self, "loader"):
            self._choose_workspace(options.pop("workspace"))
        self.pdb = options.get("pdb", False)
        options.update(self.opt_vals)
        if hasattr(self, "loader") and "dodoFile" in options:
            self._dodo = Path(options["dodoFile"]).name
            self._check_dodo(Path(options["dodoFile"]), options)
        try:
            return int(self.execute(options, operands) or 0)
        except InvalidCommand as error:
            raise self._refused(error, operands) from None

    def _refused(self, error: InvalidCommand, words: list[str]) -> UsageError:
        """What doit refuses, with the nearest name and where all names are listed."""
        from rules.commands import selection

        targets = {target: task.name for task in getattr(self, "task_list", ()) for target in task.targets}
        tasks = [task.name for task in getattr(self, "task_list", ())]
        if error.not_found is not None:
            if meant := targets.get(str(Path(error.not_found).absolute())):
                return selection.unlike("command or task", error.not_found, meant)
            return selection.refused(words, tasks, self.loader.cmd_names, error.not_found)
        lost = next((word for word in words if word not in tasks), None) if tasks else None
        if lost is None:
            return UsageError(f"{self.bin_name} {self.name}: {error}".splitlines()[0])
        return selection.unlike("task", lost, selection.near_task(lost, tasks))

    def _check_dodo(self, path: Path, options: dict[str, Any]) -> None:
        """doit imports what the path names. Raises UsageError for no Python file, NoCatalog for no file."""
        default = path == Path(DODO)
        if path.exists() and not (path.is_file() and path.suffix == ".py"):
            found = "a folder" if path.is_dir() else path.name
            raise self._not_dodo(found)
        if path.exists() or options["seek_file"] or (default and not self.needs_dodo):
            return
        raise self._no_dodo(path) if default else self._not_dodo(f"{path}, which is not there")

    def _not_dodo(self, found: str) -> UsageError:
        what = f"{self.bin_name} {self.name}: --file: expected a {DODO}, got {found}"
        return UsageError(what, fix=f"name the {DODO} beside {CATALOG}")

    def _no_dodo(self, path: Path) -> NoCatalog:
        folder, init = path.absolute().parent, f"{self.bin_name} init"
        if (folder / CATALOG).exists():
            return NoCatalog(f"{folder}: {path.name} is not here", fix=f"{init} writes one beside {CATALOG}")
        return NoCatalog(
            f"{folder}: neither {path.name} nor {CATALOG} is here",
            fix=f"go to the folder that holds them, or {init} lays out a new one",
        )

    def _choose_workspace(self, named: str | None) -> None:
        """Before a dodo.py is loaded, and before doit changes to its folder."""
        if named == "":
            raise UsageError(f"{self.bin_name} {self.name}: --workspace: expected a folder, got nothing")
        if named is None and "rules.tasks" not in sys.modules:
            return  # a dodo.py of another kind need not load it
        from rules.tasks import Yard

        Yard.chosen = Path(named).absolute() if named else None


def _fault_of_dodo(error: Exception, dodo: str) -> UsageError | None:
    """What is wrong in a dodo.py or in what it imports, with its line; None for what fails elsewhere."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename or dodo}:{error.lineno or 1}"
        cause = f"{type(error).__name__}: {error.msg}"
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if Path(last.filename).name != dodo:
            return None
        where, cause = f"{last.filename}:{last.lineno}", f"{type(error).__name__}: {error}"
    return UsageError(f"{where}: {cause}", fix="correct that line")


class Command(AnyOrder):
    """A command that needs no catalog and works in any folder.

    A subclass gives `doc_purpose`, `doc_usage` (the operands), `cmd_options` (see `arguments.option`), how
    many operands it takes at least and at most (None: any number), and `act`.
    """

    least = 0
    most: int | None = None

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Do it and return the exit code; `options` by name. A YardError raised here becomes a sentence."""
        raise NotImplementedError

    def parse(self, in_args: list[str]) -> tuple[DefaultUpdate, list[str]]:
        """As typed: a word with `=` is an operand like any other."""
        return super().parse(typed(self.name, in_args))

    def execute(self, opt_values: dict[str, Any], pos_args: list[str]) -> int:
        """Check the number of operands, and act."""
        usage = f"{self.bin_name} {self.name} {self.doc_usage}"
        if len(pos_args) < self.least:
            raise UsageError(f"{self.bin_name} {self.name}: too few arguments", fix=usage)
        if self.most is not None and len(pos_args) > self.most:
            extra = " ".join(pos_args[self.most :])
            raise UsageError(f"{self.bin_name} {self.name}: too many arguments: {extra}", fix=usage)
        return self.act(opt_values, pos_args)


class CatalogCommand(Command):
    """A command that asks a catalog: that of the dodo.py, or the folder's models.toml when there is none."""

    needs_dodo = False
    only_looks = False  # it writes nothing at all

    def __init__(self, task_loader: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.loader = task_loader
        self._database = Path(DATABASE)

    def ignored(self) -> Collection[str]:
        """The tasks that `doit ignore` marked; to be asked after `yard`."""
        from rules.backend import RecordsBackend

        return RecordsBackend(str(self._database), None).ignored

    def get_options(self) -> list[CmdOption]:
        """The command's options, and those that say where the dodo.py is."""
        return [*super().get_options(), *(CmdOption(one) for one in self.loader.cmd_options)]

    def yard(self, options: dict[str, Any]) -> "Yard":
        """The catalog and its workspace. Raises NoCatalog when neither file is here.

        It changes to the folder of the dodo.py, as doit does, so resolve paths among the operands first.
        Raises doit's InvalidDodoFile, which doit prints, when a file is here and cannot be used.
        """
        from rules.tasks import Yard

        # Who asks for every byte to be read wants that to be remembered.
        Yard.only_looks = self.only_looks and not options.get("verify")
        folder = Path(options.get("cwdPath") or ".")
        if options.get("dodoFile") == DODO and not options["seek_file"] and not Path(DODO).exists():
            if (folder / CATALOG).exists():
                self._database = folder / DATABASE
                return Yard(folder / CATALOG)
            raise self._no_dodo(folder.resolve() / DODO)
        self.loader.setup(options)
        config = self.loader.load_doit_config()
        named = config.get("dep_file") or self.config_vals.get("dep_file") or DATABASE
        self._database = Path(named).absolute()
        yard: Yard | None = config.get("yard")
        if yard is None:
            raise NoCatalog(
                f'{options.get("dodoFile", DODO)}: it has no DOIT_CONFIG["yard"]',
                fix="write DOIT_CONFIG = yard.config there",
            )
        return yard
