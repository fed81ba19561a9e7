"""Every git command that is run, and its environment: the user's configuration holds, a repository's never.

Git is given no git directory but ours, so that it reads no configuration of a stranger's; whatever else could
start a program, or lead it elsewhere, is set here.
"""

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rules.errors import SourceError
from rules.sources import child

if TYPE_CHECKING:
    import subprocess

NETWORK = ("git", "http", "https", "ssh")  # git says `ssh` for git+ssh, too
# What a user tells git by its environment. All else that begins with GIT_ is of another repository (a hook
# that runs us has it set), or prints headers.
OF_THE_USER = re.compile(
    r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|EXEC_PATH|PROXY_COMMAND|(SSL|HTTP)_\w+"
    r"|CONFIG_(GLOBAL|SYSTEM|NOSYSTEM|COUNT|PARAMETERS|KEY_\d+|VALUE_\d+))"
)
ASKING = ("GIT_ASKPASS", "SSH_ASKPASS")
ALWAYS = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "core.pager": "cat",
    # Both may say of an object what its name does not.
    "core.commitGraph": "false",
    "core.multiPackIndex": "false",
    "core.bigFileThreshold": "1m",  # larger ones are streamed, not held in memory
    "pack.useBitmaps": "false",
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "fetch.writeCommitGraph": "false",
    "transfer.bundleURI": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
}


def environment(
    config: Sequence[tuple[str, str]] = (), protocols: Sequence[str] = (), **more: str
) -> dict[str, str]:
    """The environment of a git command: the user's, what always holds, `config`, the protocols it may use.

    `config` never shows in a list of processes.
    """
    env = {name: value for name, value in os.environ.items() if _may_pass(name)}
    env |= {
        "LC_ALL": "C",
        "GIT_DIR": os.devnull,  # unless a command names ours, it has none: not that around the current folder
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": ":".join(_allowed(protocols)),
    }
    given = env.get("GIT_CONFIG_COUNT", "")
    count = int(given) if given.isdecimal() else 0
    added = [*ALWAYS.items(), *config]
    for index, (key, value) in enumerate(added, count):
        env |= {f"GIT_CONFIG_KEY_{index}": key, f"GIT_CONFIG_VALUE_{index}": value}
    return env | {"GIT_CONFIG_COUNT": str(count + len(added))} | more


def _may_pass(name: str) -> bool:
    return not name.startswith("GIT_") or OF_THE_USER.fullmatch(name) is not None


def _allowed(protocols: Sequence[str]) -> Sequence[str]:
    """Those of the protocols that the user allows; git takes an empty list for none."""
    told = os.environ.get("GIT_ALLOW_PROTOCOL")
    return protocols if told is None else [one for one in protocols if one in told.split(":")]


def run(
    arguments: Sequence[str],
    env: Mapping[str, str] | None = None,
    given: bytes = b"",
    *,
    within_s: float = child.LOCAL_S,
    watch: Callable[[], str] | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    """A git command run to its end. Raises SourceError when it does not end, or git is not there."""
    with _in_words():
        return child.run(
            ["git", *arguments], environment() if env is None else env, given, within_s=within_s, watch=watch
        )


@contextlib.contextmanager
def started(arguments: Sequence[str], env: Mapping[str, str]) -> "Iterator[subprocess.Popen[bytes]]":
    """A running git command, ended with the block. Raises SourceError as `run` does."""
    with _in_words(), child.started(["git", *arguments], env) as process:
        yield process


@contextlib.contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except child.Missing:
        raise SourceError("git is not on this machine", fix="install git, then try again") from None
    except child.TooLong as error:
        raise SourceError(
            f"git was ended: {error}", fix="see what holds up its disk or its network, then try again"
        ) from None


def lines(arguments: Sequence[str], env: Mapping[str, str] | None = None, given: bytes = b"") -> list[str]:
    """What a git command printed, each part up to a NUL; nothing when it failed."""
    ran = run(arguments, env, given)
    return os.fsdecode(ran.stdout).split("\0")[:-1] if ran.returncode == 0 else []


def settings(content: bytes, pattern: str) -> list[tuple[str, str]]:
    """Keys (of this pattern, as git spells them) and values of a configuration; nothing that it includes."""
    words = ["config", "--file", "-", "--no-includes", "--null", "--get-regexp", pattern]
    return [(key, value) for key, _, value in (row.partition("\n") for row in lines(words, None, content))]


def users(pattern: str) -> list[tuple[str, str]]:
    """The same of the user's and the machine's configuration."""
    words = ["config", "--null", "--get-regexp", pattern]
    return [(key, value) for key, _, value in (row.partition("\n") for row in lines(words))]


# ---- logins


def for_strangers() -> tuple[list[tuple[str, str]], dict[str, str]]:
    """Configuration and environment of a command that talks to a host which only the source names.

    What answers whoever asks (GIT_ASKPASS, a header for all hosts, a program that is bound to none) stays out
    of it; helpers that keep logins by host, and what the user bound to a host, are asked as ever.
    """
    helpers: list[tuple[str, str]] = []
    for key, value in users(r"^credential\.(.*\.)?helper$"):
        if not value and not _bound(key):
            helpers.clear()  # as git understands it
        elif _bound(key) or not value.startswith(("!", "/")):
            helpers.append((key, value))
    config = [("core.askPass", ""), ("http.extraHeader", ""), ("credential.helper", ""), *helpers]
    return config, dict.fromkeys(ASKING, "")


def _bound(key: str) -> bool:
    place = key.removeprefix("credential.").removesuffix("helper").removesuffix(".")
    return bool(place.partition("://")[2].strip("*./"))
