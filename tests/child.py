"""doit as a child process, with the commands that catalogs are made by."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from doit.doit_cmd import DoitMain
from rules.commands import add, import_, init, pin

class Main(DoitMain):
    DOIT_CMDS = (*DoitMain.DOIT_CMDS, add.Add, import_.Import, init.Init, pin.Pin)

sys.exit(Main().run(sys.argv[1:]))
"""


def doit(folder: Path, *words: object, **environment: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr."""
    env = {name: value for name, value in os.environ.items() if name != "MODELS_WORKSPACE"} | environment
    command = [sys.executable, "-c", PROGRAM, *map(str, words)]
    ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    return ran.returncode, ran.stdout, ran.stderr
