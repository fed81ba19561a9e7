"""What loads an artifact is confined: a worker that tries everything finds no network, home or way out."""

import os
import platform
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from contract import FILTERED, PATH, ROOT

from rules.builders import confine, local
from rules.builders.job import Job
from rules.errors import ArtifactError

pytestmark = pytest.mark.skipif(bool(confine.missing()), reason=f"no confinement here: {confine.missing()}")

TRIES = """
import json, os, socket, sys
from pathlib import Path

starter, request, result = sys.argv[1:]
asked = json.loads(Path(request).read_text())
done = {}

def attempt(name, act):
    try:
        got = act()
        done[name] = got if isinstance(got, str) else "did"
    except Exception as error:
        done[name] = f"{type(error).__name__}"

attempt("read home", lambda: Path(asked["home"] + "/key").read_text())
attempt("list home", lambda: os.listdir(asked["home"]))
attempt("write beside", lambda: Path(asked["outputs"]["artifact"]).with_name("more").write_text("x"))
attempt("write artifact", lambda: Path(asked["outputs"]["artifact"]).open("r+b").write(b"x"))
attempt("remove artifact", lambda: Path(asked["outputs"]["artifact"]).unlink())
attempt("chmod artifact", lambda: Path(asked["outputs"]["artifact"]).chmod(0o777))
attempt("write system", lambda: Path("/usr/mark").write_text("x"))
attempt("write kernel", lambda: Path("/proc/sys/kernel/hostname").write_text("x"))
attempt("connect", lambda: socket.create_connection(("127.0.0.1", asked["port"]), 2).close())
attempt("abstract socket", lambda: socket.socket(socket.AF_UNIX).connect("\\0" + asked["abstract"]))
attempt("environment", lambda: Path(f"/proc/{starter}/environ").read_text())
attempt("memory", lambda: open(f"/proc/{starter}/mem", "r+b").close())
attempt("root", lambda: os.listdir(f"/proc/{starter}/root"))
attempt("mount", lambda: os.system("mount -t tmpfs none /usr 2>/dev/null") and 1 / 0)
attempt("own place", lambda: Path(result).with_name("mine").write_text("x") and None)
attempt("artifact", lambda: Path(asked["outputs"]["artifact"]).read_text())
attempt("home is", lambda: os.environ["HOME"])
attempt("privileges", lambda: Path("/proc/self/status").read_text().partition("CapEff:")[2].split()[0])
Path(result).write_text(json.dumps(done))
"""


def job(tmp_path: Path, worker: str, **request: Any) -> Job:
    folders = {name: tmp_path / name for name in ("scratch", "tinygrad", "tools", "store")}
    for folder in folders.values():
        folder.mkdir()
    (folders["tools"] / "worker.py").write_text(worker)
    (folders["store"] / "artifact.pkl").write_text("an artifact")
    asked = {"operation": "verify", "outputs": {"artifact": str(folders["store"] / "artifact.pkl")}}
    asked |= request
    tinygrad, scratch = folders["tinygrad"] / "tinygrad", folders["scratch"]
    log = tmp_path / "logs" / "one.log"
    return Job("one", asked, {"DEV": "CPU:X86"}, tinygrad, folders["tools"] / "worker.py", scratch, log)


REFUSED = {
    *("read home", "list home", "write artifact", "remove artifact", "chmod artifact"),
    *("write system", "write kernel", "connect", "abstract socket", "environment", "memory", "root", "mount"),
}


def test_a_worker_reaches_nothing_but_its_own_place(tmp_path: Path) -> None:
    home, artifact = tmp_path / "home", tmp_path / "store" / "artifact.pkl"
    home.mkdir()
    (home / "key").write_text("secret")
    abstract = f"yard-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0" + abstract)
        listening.listen()
        asked = {
            "home": str(home),
            "inputs": [str(home)],
            "port": server.getsockname()[1],
            "abstract": abstract,
        }
        done = local.run(job(tmp_path, TRIES, **asked))
    assert {name for name, what in done.items() if what.endswith("Error")} - {"write beside"} == REFUSED
    assert done["own place"] == "did"
    assert done["artifact"] == artifact.read_text() == "an artifact"
    assert int(done["privileges"], 16) == 0
    assert os.access(tmp_path / "scratch" / "mine", os.R_OK)
    # Its /tmp is its own, so that it may write there, and nobody sees it.
    assert [path.name for path in artifact.parent.iterdir()] == ["artifact.pkl"]


def test_the_same_worker_reaches_it_all_where_it_compiles(tmp_path: Path) -> None:
    """So that what is refused above is refused by the confinement."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "key").write_text("secret")
    harmless = "\n".join(line for line in TRIES.splitlines() if "system" not in line and "kernel" not in line)
    asked = {"home": str(home), "port": 1, "abstract": "nobody", "operation": "compile"}
    done = local.run(job(tmp_path, harmless, **asked))
    assert done["read home"] == "secret"
    assert done["write beside"] == done["write artifact"] == done["remove artifact"] == "did"
    assert done["environment"] != "PermissionError"


@pytest.mark.parametrize(
    "leaves",
    [
        'os.symlink("/etc/hostname", result)',
        "os.mkfifo(result)",
        "os.mkdir(result)",
        'Path(result).write_text("not JSON")',
        "Path(result).write_text('[1]')",
    ],
)
def test_what_a_worker_leaves_for_a_result_is_not_followed(leaves: str, tmp_path: Path) -> None:
    worker = f"import os, sys\nfrom pathlib import Path\nresult = sys.argv[3]\n{leaves}\n"
    with pytest.raises(ArtifactError, match="left no result"):
        local.run(job(tmp_path, worker))


def test_no_signal_leaves(tmp_path: Path) -> None:
    """Where Linux is new enough to tell signals apart."""
    major, minor = map(int, os.uname().release.split(".")[:2])
    worker = (
        "import json, os, sys\n"
        "try: os.kill(int(sys.argv[1]), 0); done = 'reached'\n"
        "except PermissionError: done = 'refused'\n"
        "open(sys.argv[3], 'w').write(json.dumps({'done': done}))\n"
    )
    assert local.run(job(tmp_path, worker))["done"] in (
        ("refused",) if (major, minor) >= (6, 12) else ("refused", "reached")
    )


def test_a_confined_worker_knows_its_starter_and_ends_with_it(tmp_path: Path) -> None:
    worker = "import json, os, sys\nopen(sys.argv[3], 'w').write(json.dumps({'parent': os.getppid()}))\n"
    assert local.run(job(tmp_path, worker))["parent"] == os.getpid()


def test_a_room_that_cannot_be_made_is_told_in_a_line(tmp_path: Path) -> None:
    room = replace(confine.room({}, {}, (), tmp_path), write=(str(tmp_path / "nowhere"),))
    words = confine.command(room, [sys.executable, "-c", "print('unconfined')"])
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (126, "")
    assert done.stderr == "confine: mount: No such file or directory\n"


# As in a container that lets nobody make namespaces; see seccomp(2), the numbers are those of x86-64.
WITHOUT_NAMESPACES = (
    """
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
rules = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, 272), (RETURN, 0, 0, 0x00050001), (RETURN, 0, 0, 0x7FFF0000)]
"""
    + FILTERED
)
VERIFIES = """
import sys
from pathlib import Path
from rules.builders import local
from rules.builders.job import Job
from rules.errors import YardError
folder = Path(sys.argv[1])
request = {"operation": "verify", "outputs": {"artifact": str(folder / "artifact.pkl")}}
try:
    local.run(Job("m", request, {}, folder / "tinygrad", folder / "worker.py", folder, folder / "log"))
except YardError as error:
    print(error)
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter of system calls is written for x86-64")
def test_where_nothing_can_be_confined_a_hostile_artifact_is_not_loaded(tmp_path: Path) -> None:
    """Its record may have been edited together with it; the worker here would load it, and say nothing."""
    mark = tmp_path / "obeyed"
    (tmp_path / "artifact.pkl").write_bytes(f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode())
    loads = (
        "import pickle, sys\npickle.load(open(sys.argv[2].replace('verify.json', 'artifact.pkl'), 'rb'))\n"
    )
    (tmp_path / "worker.py").write_text(loads)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NAMESPACES, "-c", VERIFIES, str(tmp_path)],
        env={"PATH": PATH, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip("the system takes no filter of system calls")
    assert "verify does not load what cannot be confined here: artifact: suspicious" in done.stdout, done
    assert not mark.exists()
