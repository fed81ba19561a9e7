"""Flag sets held against build scripts: what is read from Python and shell, on which path, at which line."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rules import flags
from rules.buildscripts.sconscript import against, read
from rules.catalog import load
from rules.commands.flags import chosen, compare, show
from rules.errors import CatalogError, SourceError, YardError

NAMES = frozenset(flags.known(["0.14.0"]))
QCOM = {
    "DEV": "QCOM",
    "FLOAT16": "1",
    "IMAGE": "2",
    "NOLOCALS": "1",
    "JIT_BATCH_SIZE": "0",
    "OPENPILOT_HACKS": "1",
}
LINE = " ".join(f"{name}={value}" for name, value in QCOM.items())
REPOSITORY = Path(__file__).resolve().parent.parent

BY_ARCH = """\
Import("env", "arch")
import os
launch = {
  "larch64": "DEV=QCOM IMAGE=2 FLOAT16=1 NOLOCALS=1 JIT_BATCH_SIZE=0 OPENPILOT_HACKS=1",
  "Darwin": f"DEV=CPU HOME={os.path.expanduser('~')}",
}.get(arch, "DEV=CPU:LLVM IMAGE=0 THREADS=0")
for one in ("driving_vision", "driving_policy"):
  env.Command(one + ".pkl", one + ".onnx", f"{launch} python3 compile.py $SOURCE $TARGET")
"""
BRANCHES = """\
def launch(where, big):
  if where == "larch64":
    pins = {"DEV": "QCOM", "FLOAT16": "1", "NOLOCALS": 1, "JIT_BATCH_SIZE": 0}
    pins["IMAGE"] = "1" if big else "2"
    if not big:
      pins.update(OPENPILOT_HACKS=True)
  else:
    pins = dict(DEV="CPU:LLVM", IMAGE="0")
  return " ".join(f"{k}={v}" for k, v in pins.items())

big = GetOption("big")
env.Command("a.pkl", "a.onnx", launch(arch, big) + " python3 compile.py")
"""


def script(tmp_path, text, name="SConscript"):
    path = tmp_path / name
    path.write_text(text)
    return path


def found(path, values=QCOM):
    return [(one.kind, one.name, one.found, one.line) for one in against(path, values, NAMES).differences]


def test_strings_by_architecture_are_one_bundle_each(tmp_path):
    path = script(tmp_path, BY_ARCH)
    same = against(path, QCOM, NAMES)
    assert (same.differences, same.bundles, same.others) == ((), (f"{path}:4",), ("CPU", "CPU:LLVM"))
    pc = {"DEV": "CPU:LLVM", "IMAGE": "0", "PARALLEL": "0"}
    assert found(path, pc) == [
        ("different", "DEV", "CPU", 5),
        ("missing", "IMAGE", None, 5),
        ("missing", "PARALLEL", None, 5),
        ("missing", "PARALLEL", None, 6),
        ("extra", "THREADS", "0", 6),
    ]


def test_tables_functions_and_both_ways_through_a_condition(tmp_path):
    path = script(tmp_path, BRANCHES)
    result = against(path, QCOM, NAMES).differences
    assert [(one.kind, one.name, one.found, one.line) for one in result] == [
        ("missing", "OPENPILOT_HACKS", None, 3),
        ("different", "IMAGE", "1", 4),
    ]
    assert {one.when for one in result} == {"arch == 'larch64' and big"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"flags = '{LINE}'\n", []),
        (f"flags = '{LINE}'\nflags += ' IMAGE=1'\n", [("different", "IMAGE", "1", 2)]),
        (f"base = '{LINE}'\nflags = base + ' TC_OPT=2'\n", [("extra", "TC_OPT", "2", 2)]),
        (f"flags = '{LINE}'.split()\nflags.append('DEBUG=1')\n", [("extra", "DEBUG", "1", 2)]),
        (f"dev = 'QCOM'\nflags = f'DEV={{dev}} {LINE.removeprefix('DEV=QCOM ')}'\n", []),
        (
            f"flags = '{LINE}'.replace('x', y)\nother = '{LINE} DEBUG=%d' % level\n",
            [("extra", "DEBUG", None, 2)],
        ),
        (f"flags = '{LINE.replace('IMAGE=2', 'IMAGE={}')}'.format(image)\n", [("unclear", "IMAGE", None, 1)]),
        (f"flags = ('DEV=QCOM IMAGE=2 '\n  'FLOAT16=0 {LINE[25:]}')\n", [("different", "FLOAT16", "0", 2)]),
        (
            "import os\nos.environ['DEV'] = 'QCOM'\n"
            + "".join(f"os.environ['{n}'] = '{v}'\n" for n, v in QCOM.items() if n not in ("DEV", "IMAGE")),
            [("missing", "IMAGE", None, 2)],
        ),
        (
            f"pins = dict({', '.join(f'{n}={v!r}' for n, v in QCOM.items())})\npins.pop('NOLOCALS')\n"
            "run(env={**pins, 'GMMU': '0'})\ndel pins['GMMU']\n",
            [("missing", "NOLOCALS", None, 1), ("extra", "GMMU", "0", 3)],
        ),
        (
            f"if arch in ('larch64', 'aarch64'):\n  f = '{LINE}'\nelif arch != 'larch64':\n  f = 'DEV=CPU'\n"
            "if arch == 'larch64':\n  f += ' DEBUG=0'\nif arch == 'aarch64':\n  f += ' DEBUG=2'\n",
            [("extra", "DEBUG", "0", 6), ("extra", "DEBUG", "2", 8)],
        ),
    ],
)
def test_ways_to_write_flags(tmp_path, text, expected):
    assert found(script(tmp_path, text)) == expected


def test_a_shell_script_with_continued_lines_exports_and_comments(tmp_path):
    text = (
        "#!/bin/sh\n# DEV=CPU IMAGE=9\nexport FLOAT16=1 NOLOCALS=1\nexport JIT_BATCH_SIZE=0\n"
        'HOME=/data DEV=QCOM \\\n  IMAGE=1 \\\n  DEBUG="$LEVEL" python3 compile.py\n'
    )
    assert found(script(tmp_path, text, "build.sh")) == [
        ("missing", "OPENPILOT_HACKS", None, 5),
        ("different", "IMAGE", "1", 6),
        ("extra", "DEBUG", None, 7),
    ]


def test_a_tree_is_searched_for_its_scons_files_first(tmp_path):
    models = tmp_path / "selfdrive" / "modeld"
    (tmp_path / "tinygrad_repo").mkdir()
    models.mkdir(parents=True)
    script(models, BY_ARCH)
    script(models, "x = 'DEV=QCOM'", "bench.py")
    script(models, "\x00\x05", "._SConscript")
    script(tmp_path / "tinygrad_repo", "x = 'DEV=QCOM'", "SConscript")
    assert against(tmp_path, QCOM, NAMES).bundles == ("selfdrive/modeld/SConscript:4",)
    (models / "SConscript").unlink()
    assert against(tmp_path, {"DEV": "QCOM"}, NAMES).bundles == ("selfdrive/modeld/bench.py:1",)


def test_no_branch_for_the_device_is_a_difference_and_no_flags_an_error(tmp_path):
    path = script(tmp_path, "flags = 'DEV=CPU IMAGE=0'\n")
    assert found(path) == [("different", "DEV", "CPU", 1)]
    with pytest.raises(SourceError, match="sets DEV"):
        against(script(tmp_path, "print('hello')\n"), QCOM, NAMES)
    with pytest.raises(SourceError, match="no such file"):
        against(tmp_path / "gone", QCOM, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        "x = ['DEV=QCOM']\n" + "x = [x, x]\n" * 60,
        "x = 'DEV=QCOM '\n" + "x = x + x\n" * 60,
        "x = ['DEV=QCOM']\nx.append(x)\n",
        "".join(f"if a{i}:\n  x = 'DEV=QCOM IMAGE={i}'\n" for i in range(40)),
        "x = 'DEV=QCOM'\n"
        + "for a in [1]*64:\n"
        + "".join(" " * i + f"for a{i} in range(9):\n" for i in range(1, 20)),
        "def f():\n  return f() + f() + 'DEV=QCOM'\nf()\n",
        "x = " + "(" * 300 + "'DEV=QCOM'" + ")" * 300,
        "x = 'DEV=QCOM' " + "+ 'IMAGE=1' " * 5000,
    ],
)
def test_hostile_scripts_end_in_bundles_or_one_sentence(tmp_path, text):
    try:
        read(script(tmp_path, text), NAMES)
    except YardError as error:
        assert "\n" not in error.what


WORDS = (
    "DEV=QCOM |IMAGE=|x|[|]|'|\"|(|)|{|}|=|\n|  |if a:|for x in y:|def f():|return |f'|.get(|.update(|+=|del "
)
words = st.sampled_from([*WORDS.split("|"), "\\\n", "export ", "#", ",", ":", "\0"])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(words, st.text(max_size=3)), max_size=40))
def test_any_text_is_read_or_refused(tmp_path_factory, pieces):
    path = tmp_path_factory.mktemp("script") / "SConscript"
    path.write_text("".join(pieces), "utf-8", errors="replace")
    try:
        bundles = read(path, NAMES)
    except SourceError:
        return
    assert all("DEV" in one.pins for one in bundles)


@given(
    st.dictionaries(
        st.sampled_from(sorted(NAMES - {"DEV"})),
        st.from_regex(r"[A-Za-z0-9:+]{1,8}", fullmatch=True),
        max_size=8,
    )
)
def test_a_set_written_out_in_any_way_reads_back(tmp_path_factory, values):
    pins = {"DEV": "QCOM", **values}
    line = " ".join(f"{name}={value}" for name, value in pins.items())
    folder = tmp_path_factory.mktemp("script")
    for text in (
        f"x = {line!r}\n",
        f"x = {pins!r}\n",
        f"x = {line.split()!r}\n",
        f"{line} python3 compile.py\n",
    ):
        assert found(script(folder, text), pins) == []


def test_the_command_prints_places_and_exits_by_the_result(tmp_path, capsys):
    catalog = load(REPOSITORY / "models.toml", machine="x86_64")
    one = chosen(catalog, "qcom-upstream")
    assert show(one) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}={value}" for name, value in one.values.items()]
    assert show(chosen(catalog, None), as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["flags"]["DEV"] == "CPU:X86"
    path = script(tmp_path, BY_ARCH)
    assert compare(catalog, one, path) == 1
    assert capsys.readouterr().out == f"{path}:4: IMAGE=2, expected 1 (when arch == 'larch64')\n"
    path.write_text(BY_ARCH.replace("IMAGE=2", "IMAGE=1"))
    assert compare(catalog, one, path, as_json=True) == 0
    assert json.loads(capsys.readouterr().out)["differences"] == []
    with pytest.raises(CatalogError, match="did you mean qcom-upstream"):
        chosen(catalog, "qcom-upstraem")
