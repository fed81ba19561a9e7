"""What compiles: a tinygrad tree, the Python and numpy that run it, and the machine's own compilers.

All of it goes into a build key, by digest and not by name: a tree edited in place is another toolchain.
"""

import contextlib
import functools
import importlib.util
import os
import platform
import secrets
import shutil
import subprocess
import sys
import threading
from pathlib import Path

from rules.builders import local, package
from rules.builders.watched import Watched
from rules.catalog import FlagSet, Toolchain
from rules.errors import CatalogError, SourceError
from rules.host import cpu_features, distribution, numpy_version, tinygrad_version
from rules.keeping import files
from rules.keeping.digests import Digests
from rules.keeping.files import discard, make_folder, put_in_place, write_bytes
from rules.keys import Content, key_of

RULES = Path(__file__).parent
RUN = (".py", ".so", ".pyd", ".pyc")
# Bindings of drivers, most of the code: all but what tinygrad's CPU device imports are left as they are, and
# take their 0.3 s when a GPU's device imports them.
AUTOGEN = r"[/\\]autogen[/\\]"
SELDOM = AUTOGEN + r"(?!__init__\.|libc\.|mesa\.)"
BYTECODE = "bytecode.sha256"
DIGEST = 64  # characters of a sha256
ANSWER_S = 60.0  # for a compiler to say which it is
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")


def tinygrad_root(toolchain: Toolchain, base: Path) -> Path:
    """The folder of the `tinygrad` package that this toolchain pins.

    Raises SourceError when it is not on this machine, and CatalogError when it is another release.
    """
    if toolchain.path is not None:
        root = base / toolchain.path / "tinygrad"
        if not (root / "tensor.py").is_file():
            raise SourceError(
                f"toolchain {toolchain.name}: {root} is no tinygrad", fix="correct its path in models.toml"
            )
        return root
    installed = tinygrad_version()
    if installed != toolchain.tinygrad:
        here = installed or "none"
        raise CatalogError(
            f"toolchain {toolchain.name}: pins tinygrad {toolchain.tinygrad}, but {here} is installed",
            fix=f"{sys.executable} -m pip install tinygrad=={toolchain.tinygrad}, or change the pin",
        )
    return _installed_root()


@functools.cache
def _installed_root() -> Path:
    # That of the version that was compared, whatever PYTHONPATH or the current folder puts before it.
    found = distribution("tinygrad")
    assert found is not None
    return Path(str(found.locate_file("tinygrad")))


def tree_files(root: Path, digests: Digests) -> list[str]:
    """Everything in a tree that Python may run, as paths within it, sorted; bytecode caches are not in it."""
    found = []
    seen: set[int] = set()
    for where, folders, names in os.walk(root, followlinks=True):
        inode = digests.look(where).inode
        folders[:] = [] if inode in seen else [one for one in folders if one != "__pycache__"]
        seen.add(inode)
        runs = (name for name in names if name.endswith(RUN) and not name.startswith("._"))
        found += [os.path.relpath(f"{where}/{name}", root) for name in runs]
    return sorted(found)


def tree_digest(root: Path, digests: Digests) -> str:
    """One sha256 over everything in a tree that Python may run: sorted paths and their digests."""
    return key_of({path: digests.of(f"{root}/{path}").sha256 for path in tree_files(root, digests)})


def snapshot(root: Path, expected: str, folder: Path, digests: Digests) -> Path:
    """A copy of the tinygrad in `root` that nobody edits, its bytecode made afresh: what a compile imports.

    A tree that is edited and put back while a compile reads it, or a stale bytecode cache in it, would give
    an artifact that its key does not describe. Raises SourceError when the tree is not `expected` any more.
    """
    final = folder / expected[:16] / "tinygrad"
    if is_whole(final, expected, digests):
        return final
    made = folder / f".tmp-{os.getpid()}-{secrets.token_hex(4)}" / "tinygrad"
    for path in tree_files(root, digests):
        make_folder((made / path).parent)
        shutil.copyfile(root / path, made / path)
    if tree_digest(made, digests) != expected:
        discard(made.parent)
        raise SourceError(f"{root}: it changed while a compile was about to use it", fix="run doit again")
    _compile_bytecode(made)
    write_bytes(made.with_name(BYTECODE), bytecode_digest(made, digests).encode())
    discard(final.parent)
    put_in_place(made.parent, final.parent)
    return final


def _compile_bytecode(tree: Path) -> None:
    """Two processes share the work, and are gone when this ends, however it ends."""
    compiling = [sys.executable, "-m", "compileall", "-qq", "--invalidation-mode", "unchecked-hash", "-x"]
    shares = ([AUTOGEN, str(tree)], [SELDOM, str(tree / "runtime" / "autogen")])
    with contextlib.ExitStack() as stack:
        running = [subprocess.Popen([*compiling, *share], stderr=subprocess.DEVNULL) for share in shares]
        watches = [stack.enter_context(Watched(process, None)) for process in running]
        for process in running:
            process.wait()
    if why := next((watch.why for watch in watches if watch.why), ""):
        raise SourceError(f"{tree}: making its bytecode {why}", fix="run doit again")


def is_whole(tree: Path, expected: str, digests: Digests) -> bool:
    """Whether a snapshot is as it was made: a power cut may have cut off bytecode, which Python would run.

    `expected` is the digest of the tree, or how it begins. Python finds modules beside the tree too: nothing
    else lies there.
    """
    try:
        beside = {path.name for path in tree.parent.iterdir() if not path.name.startswith(".")}
        if beside != {tree.name, BYTECODE}:
            return False
        bytecode = files.read(tree.with_name(BYTECODE), DIGEST).decode()
        return tree_digest(tree, digests).startswith(expected) and bytecode_digest(tree, digests) == bytecode
    except (OSError, UnicodeDecodeError):
        return False


def bytecode_digest(tree: Path, digests: Digests) -> str:
    """One sha256 over the bytecode that stands beside the modules of a tree."""
    found = sorted(path for path in tree.rglob("__pycache__/*.pyc") if not path.name.startswith("._"))
    return key_of({str(path.relative_to(tree)): digests.of(path).sha256 for path in found})


class Toolchains:
    """The identities of one catalog's toolchains, each looked up once until somebody asks to look again."""

    def __init__(self, base: Path, digests: Digests) -> None:
        self.base = base
        self.digests = digests
        self._known: dict[tuple[str, ...], Content] = {}
        self._making = threading.Lock()

    def identity(self, toolchain: Toolchain, flags: FlagSet) -> Content:
        """What a build key holds of the toolchain, and of the machine that runs it."""
        name = (toolchain.name, flags.name)
        # Another thread may empty the table at any moment, so nothing is read back from it.
        if (known := self._known.get(name)) is None:
            tree = tree_digest(tinygrad_root(toolchain, self.base), self.digests)
            self._look_at_what_has_no_digest(flags)
            known = self._known[name] = {
                "tinygrad": {"version": toolchain.tinygrad, "tree": tree},
                "python": platform.python_version(),
                "numpy": numpy_version(),
                **machine(flags),
            }
        return known

    def _look_at_what_has_no_digest(self, flags: FlagSet) -> None:
        """Files whose change changes the answer: numpy's, the compiler's."""
        numpy = importlib.util.find_spec("numpy")
        compiler = shutil.which(flags.values.get("CC", "clang"), path=local.PATH)
        for path in (numpy.origin if numpy else None, compiler):
            if path:
                self.digests.look(path)

    def snapshot(self, toolchain: Toolchain, expected: str, folder: Path) -> Path:
        """The tinygrad of a toolchain as `snapshot` keeps it; made once."""
        with self._making:
            return snapshot(tinygrad_root(toolchain, self.base), expected, folder, self.digests)

    def code(self, *names: str) -> str:
        """The digest of modules of `rules` whose own working decides a step's bytes; paths within `rules`."""
        if (known := self._known.get(names)) is None:
            found = {name: self.digests.of(RULES / name).sha256 for name in names}
            known = self._known[names] = {"sha256": key_of(found)}
        return str(known["sha256"])

    def worker(self) -> str:
        """The digest of the worker's sources."""
        name = ("worker", "")
        if (known := self._known.get(name)) is None:
            known = self._known[name] = {"sha256": package.digest(self.digests)}
        return str(known["sha256"])

    def look_again(self) -> None:
        """Files may have changed: what was looked up is no longer trusted."""
        self._known.clear()


def machine(flags: FlagSet) -> Content:
    """Compiler and processor, as far as they decide the bytes that this flag set gives.

    tinygrad asks compilers for `native` code, so a CPU artifact is tied to the features of the processor it
    was made on; its own backend would not tell.
    """
    target = flags.values["DEV"]
    content: Content = {"machine": platform.machine()}
    if {flags.expected_device, flags.warp_device} & {"CPU", "CL"}:
        content["cpu_features"] = key_of({"features": cpu_features()})
    if target == "CPU" or target.startswith("CPU:CLANG"):
        content["compiler"] = clang_version(flags.values.get("CC", "clang"))
    if flags.expected_device in ("CUDA", "NV") and NVIDIA_DRIVER.exists():
        content["driver"] = NVIDIA_DRIVER.read_text().splitlines()[0]
    return content


@functools.cache
def clang_version(compiler: str) -> str:
    """The first line of the compiler's `--version`; raises SourceError when it is not on this machine."""
    found = shutil.which(compiler, path=local.PATH)
    if found is None:
        raise SourceError(
            f"{compiler} is not on this machine, and DEV=CPU compiles with it",
            fix="install clang, or use the flag set cpu (x86-64, no compiler needed)",
        )
    try:
        asked = subprocess.run(
            [found, "--version"], capture_output=True, check=False, timeout=ANSWER_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise SourceError(
            f"{found} --version has not answered for {ANSWER_S:.0f} s",
            fix="set CC to a clang in the flag set",
        ) from None
    said = asked.stdout.decode(errors="replace")
    if not said.strip():
        raise SourceError(f"{found} --version says nothing", fix="set CC to a clang in the flag set")
    return said.splitlines()[0]
