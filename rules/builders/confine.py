"""A process without network, home or write access: what an artifact does when it is loaded stays in there.

It gets a file system of its own that holds the system's programs, Python, what it was told it may read, one
folder to write in, and the devices it needs; a network without any interface; and no capability to undo that
(user, mount, network, IPC and UTS namespaces, see namespaces(7)). Run as a program, this module makes itself
such a process and then becomes the command that it was given.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

# Nothing of the user's own: programs, their libraries, and where those look for GPU drivers.
SYSTEM = (
    *(
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/opt",
        "/nix/store",
        "/gnu/store",
        "/sys",
        "/proc",
    ),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/OpenCL", "/etc/nvidia", "/etc/vulkan", "/vendor", "/system"),
)
DEVICES = ("null", "zero", "full", "random", "urandom")
GPUS = ("nvidia*", "dri", "kfd", "kgsl-3d0", "ion", "dma_heap", "bus/usb", "vfio", "dxg", "mali*")
ON_HOST = ("CPU", "NPY", "PYTHON", "NULL", "LLVM", "CLANG", "X86")


@dataclass(frozen=True)
class Room:
    """What a confined process has: paths to read, folders to write in, the first of them to start in, and
    device files."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...] = ()


def room(request: Mapping[str, Any], flags: Mapping[str, str], tools: Iterable[Path], write: Path) -> Room:
    """The room of a worker: the files that its request is about are there to read, and those that flags name.

    Other texts of a request may come from a network, and name nothing.
    """
    networks = [network["path"] for network in request.get("networks", {}).values()]
    footage = _texts(request.get("footage"))
    flagged = [path for value in flags.values() for path in value.split(":") if path.startswith("/")]
    named = [*request.get("outputs", {}).values(), *networks, *footage, *flagged]
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parent)]
    gpus = GPUS if _needs_gpu(flags) else ()
    devices = [str(path) for pattern in (*DEVICES, *gpus) for path in sorted(Path("/dev").glob(pattern))]
    read = [*SYSTEM, *python, *map(str, tools), *named]
    return Room(tuple(path for path in read if _is_there(path)), (str(write),), tuple(devices))


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # a text that is no path, after all
        return False


def _needs_gpu(flags: Mapping[str, str]) -> bool:
    targets = [target for name in ("DEV", "WARP_DEV") for target in flags.get(name, "").split(";")]
    return any(target.split(":", 1)[0] not in ("", *ON_HOST) for target in targets)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for one in value.values() for text in _texts(one))
    elif isinstance(value, Sequence):
        yield from (text for one in value for text in _texts(one))


def command(room: Room, words: Sequence[str]) -> list[str]:
    """How a command is started in a room."""
    return [sys.executable, "-I", "-S", str(Path(__file__).resolve()), json.dumps(asdict(room)), *words]


@cache
def missing() -> str:
    """Why this machine cannot confine a process, in words; nothing when it can."""
    if sys.platform != "linux":
        return f"{sys.platform} has no namespaces"
    with TemporaryDirectory(prefix="modelyard-") as folder:
        words = command(room({}, {}, (), Path(folder)), [sys.executable, "-I", "-S", "-c", ""])
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    lines = done.stderr.strip().splitlines()
    return (lines[-1] if lines else f"it ends with {done.returncode}")[:200] if done.returncode else ""


# ---- in the process that confines itself

NEWNS, NEWUTS, NEWIPC, NEWUSER, NEWNET = 0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x40000000
NOSUID, NODEV, BIND, RECURSIVE, PRIVATE = 2, 4, 4096, 16384, 1 << 18
DETACH = 2
READ_ONLY = 1  # MOUNT_ATTR_RDONLY
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
MOUNT_SETATTR, CREATE_RULESET, RESTRICT_SELF = 442, 444, 446  # the same on every architecture since 2019
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
CAPBSET_DROP, NO_NEW_PRIVILEGES = 24, 38  # prctl(2)
SCOPES_ABI = 6  # of Landlock, since Linux 6.12
SCOPED = 1 | 2  # abstract sockets and signals reach no process outside
PRIVATE_BYTES = 256 << 20  # of /tmp and /dev/shm each


class System:
    """System calls by way of ctypes; each raises OSError that names it."""

    def __init__(self) -> None:
        import ctypes

        self._ctypes = ctypes
        self._libc = ctypes.CDLL(None, use_errno=True)

    def do(self, name: str, *arguments: Any) -> int:
        """A function of the C library."""
        return self._checked(name, getattr(self._libc, name)(*map(self._given, arguments)))

    def call(self, name: str, number: int, *arguments: Any) -> int:
        """A system call that the C library may lack."""
        return self._checked(name, self._libc.syscall(number, *map(self._given, arguments)))

    def _given(self, value: Any) -> Any:
        if isinstance(value, int):
            return self._ctypes.c_long(value)
        return value.encode() if isinstance(value, str) else value

    def _checked(self, name: str, answer: int) -> int:
        if answer < 0:
            code = self._ctypes.get_errno()
            raise OSError(code, f"{name}: {os.strerror(code)}")
        return answer


def _leave(system: System) -> None:
    """Into namespaces of its own, as the user that it is."""
    user, group = os.getuid(), os.getgid()
    system.do("unshare", NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWNET)
    maps = {"setgroups": "deny", "uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
    for name, text in maps.items():
        Path("/proc/self", name).write_text(text)


def _furnish(system: System, room: Room) -> None:
    """A root that holds what the room has, and from which nothing leads back."""
    pivot = PIVOT_ROOT.get(os.uname().machine)
    if pivot is None:
        raise OSError(f"pivot_root: unknown on {os.uname().machine}")
    real = {path: os.path.realpath(path) for path in (*room.read, *room.write, *room.devices)}
    base, mounted = real[room.write[0]], _mounted()
    system.do("mount", None, "/", None, RECURSIVE | PRIVATE, None)
    system.do("mount", "tmpfs", base, "tmpfs", NOSUID | NODEV, "mode=755")
    for name in ("old", "new"):
        Path(base, name).mkdir()
    system.call("pivot_root", pivot, base, f"{base}/old")
    os.chdir("/")
    system.do("mount", "tmpfs", "/new", "tmpfs", NOSUID | NODEV, "mode=755")
    private = [_private(system, name) for name in ("/tmp", "/dev/shm")]
    for path in (*sorted(room.read), *room.write, *room.devices):
        for where in dict.fromkeys((real[path], path)):
            _bind(system, real[path], where, again=path in room.write)
    for where in mounted:
        if any(where.startswith(f"{real[path]}/") for path in room.read):
            _bind_again(system, where)
    own = f"/proc/{os.getpid()}"  # GPU drivers write there, and it tells of nobody else
    _bind(system, own, own, again=True)
    _set(system, "/new", AT_RECURSIVE, READ_ONLY, 0)
    for where in (*private, own, *room.write, *(real[path] for path in room.write)):
        _set(system, f"/new{where}", 0, 0, READ_ONLY)
    os.chdir("/new")
    system.call("pivot_root", pivot, ".", ".")
    system.do("umount2", ".", DETACH)


def _bind(system: System, source: str, where: str, *, again: bool) -> None:
    """Make a file or folder of the old root appear in the new one, unless a folder above shows it already."""
    target, old = Path(f"/new{where}"), Path(f"/old{source}")
    if target.exists() and not again:
        return
    if old.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    system.do("mount", str(old), str(target), None, BIND | RECURSIVE, None)


def _mounted() -> list[str]:
    """Where file systems are mounted, those that others lie in first."""
    rows = Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines()
    places = {row.split(" ")[4].encode("latin-1", "replace").decode("unicode_escape") for row in rows}
    return sorted(places)


def _bind_again(system: System, where: str) -> None:
    """Bind what is mounted in a folder that the new root shows; gVisor shows only the empty place of it."""
    old, new = Path(f"/old{where}"), Path(f"/new{where}")
    with contextlib.suppress(OSError):  # a place that this process may not look at, or that is gone
        if new.exists() and old.stat().st_dev != new.stat().st_dev:
            system.do("mount", str(old), str(new), None, BIND | RECURSIVE, None)


def _private(system: System, where: str) -> str:
    Path(f"/new{where}").mkdir(parents=True, exist_ok=True)
    system.do("mount", "tmpfs", f"/new{where}", "tmpfs", NOSUID | NODEV, f"mode=1777,size={PRIVATE_BYTES}")
    return where


def _set(system: System, path: str, how: int, on: int, off: int) -> None:
    attributes = b"".join(value.to_bytes(8, "little") for value in (on, off, 0, 0))
    system.call("mount_setattr", MOUNT_SETATTR, AT_FDCWD, path, how, attributes, len(attributes))


def _give_up_rights(system: System) -> None:
    """No capability survives the exec, and none comes back; no signal leaves, where the system can tell."""
    capability = 0
    while True:
        try:
            system.do("prctl", CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:
            break  # past the last one
        capability += 1
    if not capability:
        raise OSError("prctl: its capabilities stay")
    system.do("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    try:
        version = system.call("landlock", CREATE_RULESET, None, 0, 1)
    except OSError:
        return
    if version >= SCOPES_ABI:
        attributes = b"".join(value.to_bytes(8, "little") for value in (0, 0, SCOPED))
        rules = system.call("landlock", CREATE_RULESET, attributes, len(attributes), 0)
        system.call("landlock", RESTRICT_SELF, rules, 0)
        os.close(rules)


def main(arguments: Sequence[str]) -> int:
    """`confine.py ROOM WORD…`: become the command, confined; 126 and a line when that does not go."""
    room, words = Room(**json.loads(arguments[0])), list(arguments[1:])
    try:
        system = System()
        _leave(system)
        _furnish(system, room)
        _give_up_rights(system)
        os.chdir(room.write[-1])
        os.execv(words[0], words)
    except OSError as error:
        print(f"confine: {error.strerror or error}", file=sys.stderr)
        return 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
