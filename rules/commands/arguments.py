"""The argument vector of our own commands: options anywhere, `=` kept, nothing unknown let through."""

import getopt
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from doit.cmdparse import CmdOption, CmdParse, CmdParseError, DefaultUpdate

from rules import flags
from rules.errors import YardError

VALUES = {int: "a whole number", float: "a number", str: "a text"}


class UsageError(YardError):
    """The command line itself is wrong."""


def option(
    name: str, told: str, *, kind: type = bool, default: Any = None, short: str = ""
) -> dict[str, Any]:
    """A command-line option as doit's `cmd_options` hold it; `output_dir` is typed as `--output-dir`.

    `told` is its help. A `bool` is a switch, off by default; a `list` may be given several times; anything else takes a value.
    """
    if default is None:
        default = {bool: False, list: []}.get(kind)
    return {
        "name": name,
        "short": short,
        "long": name.replace("_", "-"),
        "type": kind,
        "default": default,
        "help": told.replace("%", "%%"),
    }


HELP = option("help", "show this help", short="h")
JSON = option("json", "print JSON, for programs")
VERIFY = option("verify", "read every byte of what is recorded, instead of trusting an unchanged stat")


def typed(command: str, given: Sequence[str]) -> list[str]:
    """The words after `command` on the command line; `given` is what doit leaves of them.

    doit takes every NAME=value word out before a command sees it. `given` itself is the answer when doit was
    called by a program, not from a command line.
    """
    line = sys.argv[1:]
    for index, word in enumerate(line):
        rest = line[index + 1 :]
        if word == command and [one for one in rest if one.startswith("-") or "=" not in one] == list(given):
            return rest
    return list(given)


class Parser(CmdParse):  # type: ignore[misc]
    """doit's parser, with options anywhere; after `--` there are only operands.

    `command` is what errors call the program: `doit why`.
    """

    def __init__(self, command: str, options: Iterable[CmdOption]) -> None:
        super().__init__(options)
        self.command = command

    def parse_only(
        self, in_args: Sequence[str], params: DefaultUpdate | None = None
    ) -> tuple[DefaultUpdate, list[str]]:
        """Values of options by name, and the operands. Raises UsageError."""
        values = DefaultUpdate() if params is None else params
        try:
            found, operands = getopt.gnu_getopt(list(in_args), self.get_short(), self.get_long())
        except getopt.GetoptError as error:
            raise self._refusal(error) from None
        for name, text in found:
            one, inverse = self.get_option(name)
            if one.type is bool:
                values[one.name] = not inverse
            elif one.type is list:
                values[one.name] = [*(values.get(one.name) or []), text]
            else:
                values[one.name] = self._value(one, name, text)
        return values, operands

    def _value(self, one: CmdOption, name: str, text: str) -> Any:
        try:
            return one.str2type(text)
        except CmdParseError:
            right = f"one of {', '.join(one.choices)}" if one.choices else VALUES[one.type]
            raise UsageError(f"{self.command}: {name}: expected {right}, got {text!r}") from None

    def _refusal(self, error: getopt.GetoptError) -> UsageError:
        options = [f"--{long.removesuffix('=')}" for long in self.get_long()]
        near = flags.nearest(f"--{error.opt}", options) if "not recognized" in error.msg else None
        fix = f"did you mean {near}?" if near else f"{self.command} --help lists the options"
        return UsageError(f"{self.command}: {error.msg}", fix=fix)
