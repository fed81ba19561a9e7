"""The argument vector of our own commands: options anywhere, `=` kept, nothing unknown let through."""

import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from doit.cmdparse import CmdOption, CmdParse, CmdParseError, DefaultUpdate

from rules import flags
from rules.errors import YardError

VALUES = {int: "a whole number", float: "a number", str: "a text"}


class UsageError(YardError):
    """The command line itself is wrong."""


def option(
    name: str,
    told: str,
    *,
    kind: type = bool,
    default: Any = None,
    short: str = "",
    among: Iterable[str] = (),
) -> dict[str, Any]:
    """A command-line option as doit's `cmd_options` hold it; `output_dir` is typed as `--output-dir`.

    `told` is its help. A `bool` is a switch, off by default; a `list` may be given several times; anything
    else takes a value, which must be one of `among` when that is not empty.
    """
    if default is None:
        default = {bool: False, list: []}.get(kind)
    return {
        "name": name,
        "short": short,
        "long": name.replace("_", "-"),
        "type": kind,
        "default": default,
        "choices": [(one, "") for one in among],
        "help": told.replace("%", "%%"),
    }


HELP = option("help", "show this help", short="h")
JSON = option("json", "print JSON, for programs")
VERIFY = option("verify", "read every byte of sources, toolchain and results, instead of trusting a stat")


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
    """doit's parser, with options anywhere and written in full; after `--` there are only operands.

    `command` is what errors call the program: `doit why`; `commands` are the ones that stand beside it.
    """

    def __init__(self, command: str, options: Iterable[CmdOption], commands: Collection[str] = ()) -> None:
        super().__init__(options)
        self.command = command
        self.commands = commands

    def parse_only(
        self, in_args: Sequence[str], params: DefaultUpdate | None = None
    ) -> tuple[DefaultUpdate, list[str]]:
        """Values of options by name, and the operands. Raises UsageError."""
        values = DefaultUpdate() if params is None else params
        operands: list[str] = []
        words = iter(in_args)
        for word in words:
            if word == "--":
                operands += words
            elif word == "-" or not word.startswith("-"):
                operands.append(word)
            else:
                for one, name, text in self._read(word, words):
                    self._set(values, one, name, text)
        return values, operands

    def _read(self, word: str, words: Iterator[str]) -> Iterator[tuple[CmdOption, str, str | None]]:
        """The options in one word: (option, as typed, its value; None for a switch)."""
        if word.startswith("--"):
            yield self._read_long(word, words)
            return
        letters = iter(word[1:])
        for letter in letters:
            name = f"-{letter}"
            one = self._known(name)
            yield one, name, None if one.type is bool else "".join(letters) or self._next(name, words)

    def _read_long(self, word: str, words: Iterator[str]) -> tuple[CmdOption, str, str | None]:
        name, equals, text = word.partition("=")
        one = self._known(name)
        if one.type is not bool:
            return one, name, text if equals else self._next(name, words)
        if equals:
            raise UsageError(f"{self.command}: {name} is a switch, it takes no value", fix=f"write {name}")
        return one, name, None

    def _known(self, name: str) -> CmdOption:
        one = self.get_option(name)[0]
        if one is None:
            raise self._unknown(name)
        return one

    def _unknown(self, name: str) -> UsageError:
        names = [f"--{long.removesuffix('=')}" for long in self.get_long()]
        near = flags.nearest(name, names) if name.startswith("--") else None
        if name.lstrip("-") in self.commands:
            near = f"{self.command.partition(' ')[0]} {name.lstrip('-')}"
        lists = f"{self.command} --help lists its options"
        fix = f"did you mean {near}? else {lists}" if near else lists
        return UsageError(f"{self.command}: unknown option {name}", fix=fix)

    def _next(self, name: str, words: Iterator[str]) -> str:
        for word in words:
            return word
        raise UsageError(f"{self.command}: {name} needs a value", fix=f"write {name} VALUE")

    def _set(self, values: DefaultUpdate, one: CmdOption, name: str, text: str | None) -> None:
        if text is None:
            values[one.name] = not self.get_option(name)[1]
        elif one.type is list:
            values[one.name] = [*(values.get(one.name) or []), text]
        else:
            values[one.name] = self._value(one, name, text)

    def _value(self, one: CmdOption, name: str, text: str) -> Any:
        try:
            return one.str2type(text)
        except CmdParseError:
            right = f"one of {', '.join(one.choices)}" if one.choices else VALUES[one.type]
            what = f"{self.command}: {name}: expected {right}, got {text!r}"
            raise UsageError(what, fix=f"{self.command} --help says what it takes") from None
