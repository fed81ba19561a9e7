"""The documents say what is so: every command line they show is run here."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import needs
from contract import PATH, ROOT, Project, generated, model

README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.S)


def lines(block: str) -> list[str]:
    """The commands of a fenced block, comments and folder taken off."""
    return [line.split("  #")[0].strip() for line in block.splitlines() if line.strip()]


def test_the_first_block_is_the_two_commands_and_ci_runs_the_second() -> None:
    kind, block = BLOCKS[0]
    assert kind == "sh"
    build, test = lines(block)
    assert build == "sh ./setup && .venv/bin/doit -n 2"
    assert (ROOT / ".ci/run").read_text().rstrip().splitlines()[-1] == test


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the README's model in it, built."""
    folder = tmp_path_factory.mktemp("readme")
    table = model("pop2", generated("vision-conv+attention"), 'since = "v22"')
    made = Project(folder, table + '[release.v22]\ncontract = "warp"\n')
    made.doit()
    return made


@pytest.mark.parametrize("line", lines(BLOCKS[1][1]))
def test_a_command_line_of_the_readme_runs(project: Project, line: str) -> None:
    program, *words = shlex.split(line)
    assert program == ".venv/bin/doit"
    project.doit(*words)


def test_the_example_runs_an_artifact_with_nothing_but_tinygrad_and_numpy(project: Project) -> None:
    (block,) = (text for kind, text in BLOCKS if kind == "sh" and "pickle" in text)
    script = block.replace(".venv/bin/python", sys.executable)
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=project.folder,
        env={"PATH": PATH, "HOME": str(project.folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{step} (1, 1576) (1, 1000) True True" for step in range(3)]


def test_the_dodo_of_another_repository_works(tmp_path: Path) -> None:
    (block,) = (text for kind, text in BLOCKS if kind == "python")
    project = Project(tmp_path, model("mlp", generated("generic-mlp"), 'type = "generic"'))
    (tmp_path / "dodo.py").write_text(block)
    assert len(block.strip().splitlines()) <= 3
    assert "pkl:mlp" in project.doit("list", "--all").stdout


def test_no_document_names_a_machine_or_an_index() -> None:
    tracked = subprocess.run(
        [needs("git"), "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    found = []
    for name in tracked.splitlines():
        text = (ROOT / name).read_bytes().decode(errors="replace")
        found += [
            name for word in ("/work" + "/", "pypi" + ".org", "files.python" + "hosted") if word in text
        ]
    assert not found
