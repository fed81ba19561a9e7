"""The failures that one line of a log gives away: how to know each, what causes it, what to type next.

A table, in the order in which equally sure findings are told. `trigger` is searched first, in lower case,
because plain search is fast; the patterns then look only at the line around it, and hold no unbounded
wildcard, so that a hostile log costs no more than its length.
"""

import re
from dataclasses import dataclass, field
from re import Pattern
from typing import Final

CERTAIN, LIKELY, POSSIBLE = "certain", "likely", "possible"
CONFIDENCES: Final = (CERTAIN, LIKELY, POSSIBLE)

PROCESSES: Final = r"(?:iqmodeld|dmonitoringmodeld|modeld(?:_tinygrad|_v2)?)"
SERVICES: Final = ("modelV2", "livePose", "iqPlan", "drivingModelData", "cameraOdometry", "driverStateV2")
SPAM: Final = 3  # fewer are a start-up's own
FREEZE: Final = r"\b(?:frozen|froze|freez(?:e|es|ing)|hung|hangs|not responding|unresponsive)\b"
# Classes that a pickled capture is made of, in one tinygrad or another.
CLASSES: Final = (
    "TinyJit|CapturedJit|JitItem|ExecItem|CompiledRunner|BufferCopy|BufferXfer|ViewOp|Runner|UOp|UOpMetaClass|Ops"
    "|Buffer|MultiBuffer|BufferSpec|ProgramSpec|ProgramInfo|Estimates|KernelInfo|ShapeTracker|View|LazyBuffer"
    "|Opt|OptOps|DType|PtrDType|ImageDType|Metadata|Variable|Tensor|GraphRunner|QCOMGraph|HCQGraph|CallInfo"
)


@dataclass(frozen=True)
class Sign:
    """A line that has `trigger`, every pattern of `also`, and none of `never`; (?i) where case is free."""

    trigger: str
    also: tuple[Pattern[str], ...] = ()
    never: Pattern[str] | None = None


@dataclass(frozen=True)
class Symptom:
    """One failure; `least` is how many lines it takes. `fix` may hold {model} and {file}."""

    name: str
    confidence: str
    cause: str
    fix: str
    signs: tuple[Sign, ...]
    least: int = 1
    words: tuple[str, ...] = field(default=())  # of these, the ones in the lines complete the cause


def sign(trigger: str, *also: str, never: str | None = None) -> Sign:
    """A sign from pattern texts."""
    return Sign(trigger, tuple(re.compile(one) for one in also), re.compile(never) if never else None)


SYMPTOMS: Final = (
    Symptom(
        "Git LFS pointer instead of the file",
        CERTAIN,
        "what lies under the file's name is a text of three lines that stands for it: LFS never fetched it",
        "git lfs pull, then doit pkl:{model}; doit inspect {file} shows what a file is",
        (
            sign("version https://git-lfs", r"git-lfs\.github\.com/spec/v1"),
            sign("invalid load key, 'v'", "(?i)load key, 'v'"),
        ),
    ),
    Symptom(
        "not a pickle",
        CERTAIN,
        "the file is no artifact: a web page saved under its name, or other bytes",
        "doit inspect {file}, then fetch it again",
        (sign("invalid load key", r"(?i)invalid load key, '(?!v')"),),
    ),
    Symptom(
        "truncated artifact",
        CERTAIN,
        "the file ends before its pickle does: an interrupted copy or download",
        "doit inspect {file}; copy it again and compare sha256sum on both sides before anyone loads it",
        (
            sign("pickle data was truncated"),
            sign("pickle exhausted before end of frame"),
            sign("eoferror: ran out of input"),
        ),
    ),
    Symptom(
        "tiny file",
        LIKELY,
        "an artifact of a driving model holds its weights, so under a megabyte it cannot be whole",
        "doit inspect {file}; do not publish it: copy or compile it again and compare the sha256",
        (
            sign(
                ".pkl",
                r"(?<![\w-])[-r][-rwx]{9}\S? ",
                r"(?<![\d.,])(?:\d{1,5}|\d{1,3}(?:\.\d)?K) (?:[A-Z][a-z]{2}|\d{4}-)",
                r"driving_\S{0,80}\.pkl",
            ),
            sign("saved jits to", r"driving_\S{0,80}\.pkl\S{0,20} \((?:0\.\d+|0) MB\)"),
        ),
    ),
    Symptom(
        "artifact of another tinygrad",
        CERTAIN,
        "its pickle was made by a tinygrad whose classes differ from those of the one that loads it: a stale "
        "or old artifact is still in place, or tinygrad was updated and this file was not rebuilt",
        "doit inspect {file} names the classes it needs; then doit pkl:{model} and replace every artifact, "
        "driver monitoring's four files too",
        (
            sign("positional argument", rf"\b(?:{CLASSES})\b[\w.<>]{{0,40}}\(\) (?:takes|missing) "),
            sign(
                "unexpected keyword argument",
                rf"\b(?:{CLASSES})\b[\w.<>]{{0,40}}\(\) got an unexpected keyword",
            ),
            sign("can't get attribute", r"(?i)can't get attribute '[^'\n]{1,80}' on <module 'tinygrad"),
            sign("no module named 'tinygrad.", r"No module named 'tinygrad\."),
            sign("module 'tinygrad", r"module 'tinygrad[\w.]{0,80}' has no attribute"),
            sign("has no attribute", rf"type object '(?:{CLASSES})' has no attribute"),
            sign(
                "object has no attribute",
                rf"'(?:{CLASSES})' object has no attribute '_?(?:linear|captured|cnt|jit)",
            ),
            sign("is not a valid ops"),
        ),
    ),
    Symptom(
        "tinygrad is not on the path",
        CERTAIN,
        "the process runs a Python that has no tinygrad: PYTHONPATH or the virtual environment is not set",
        "start it through the manager, or with PYTHONPATH=/data/openpilot:/data/openpilot/tinygrad_repo",
        (sign("no module named 'tinygrad'"),),
    ),
    Symptom(
        "artifact of another format",
        CERTAIN,
        "the loader admits one format version or layout; the file has another: stale, or another client's",
        "doit inspect {file} tells its layout and format version; install the one of this client's release",
        (
            sign(
                "format_version",
                r"(?i)unsupported|unknown|unexpected|refus|mismatch|invalid|expected|!=|KeyError|older|newer",
                never=r"^\s*(?:if|raise|assert|elif|return)\b",
            ),
            sign("keyerror: 'run_policy'"),
            sign("keyerror: 'metadata'"),
        ),
    ),
    Symptom(
        "no warp for this camera",
        CERTAIN,
        "the artifact was compiled without the camera that the runtime asks for",
        'add the camera to cameras of {model} in models.toml ("WIDTHxHEIGHT"), then doit pkl:{model}',
        (sign("keyerror: (", r"KeyError: \(\d{3,4}, \d{3,4}\)"),),
    ),
    Symptom(
        "artifact without what its client reads",
        CERTAIN,
        "the loader of one era read an artifact of another: it names no devices for its inputs, as a build "
        "whose scripts and flags are not in its cache key can bring back",
        "doit inspect {file} tells its layout; rebuild it for this client: doit -a pkl:{model}",
        (sign("keyerror: 'input_devices'"),),
    ),
    Symptom(
        "warp file missing",
        CERTAIN,
        "the warp of a camera is a file of its own in this layout, and it is not beside the model",
        "install every file that doit info pkl:{model} lists, one warp for each camera",
        (
            sign(
                "no such file or directory",
                r"\b(?:dm_|driving_|big_driving_)?warp_\d{3,4}x\d{3,4}_tinygrad\.pkl",
            ),
            sign("filenotfounderror", r"\b(?:dm_|driving_|big_driving_)?warp_\d{3,4}x\d{3,4}_tinygrad\.pkl"),
        ),
    ),
    Symptom(
        "temporary folder cannot be written",
        CERTAIN,
        "the process may not write where temporary files go: TMPDIR is another user's, full, or read-only",
        "set TMPDIR to a folder of your own (doit does, for each compile), then run the same again",
        (
            sign("no usable temporary directory found"),
            sign("permission denied", r"Permission denied: '(?:/tmp|/var/tmp|/data/[\w-]*tmp)/"),
            sign("read-only file system", r"Read-only file system: '(?:/tmp|/var/tmp|/data/[\w-]*tmp)/"),
        ),
    ),
    Symptom(
        "too slow for 20 frames a second",
        CERTAIN,
        "frames were dropped, or took longer than the 50 ms there are for each",
        "doit replay {model} on the device that drives, with nothing else running; compare its flag set with "
        "the runtime's: doit flags SET --against SConscript",
        (
            sign("over the budget", r"latency .{0,80}OVER the budget of \d+ ms"),
            sign("dropped", r"\bframes +\d+ run, [1-9]\d* dropped"),
            sign("after a drop", r"\bframes +\d+ run, .{0,20}dropped, [1-9]\d* after a drop"),
        ),
    ),
    Symptom(
        "outputs are not finite",
        CERTAIN,
        "the model gave numbers that are none, in the heads that the line names",
        "doit pkl:{model} holds every step against the ONNX file; look for float16 overflows in its flag set",
        (sign("not finite", r"\bNOT FINITE\b"),),
    ),
    Symptom(
        "captured on the CPU",
        CERTAIN,
        "a capture of a device's set was made on the CPU: wrong backend or compile environment",
        'doit inspect {file} --expect-device QCOM; set DEV, WARP_DEV = "QCOM" and OPENPILOT_HACKS = 1 in '
        "its flag set, then doit pkl:{model}",
        (
            sign("captured", r"\bCPU\b", r"(?i)\bexpected(?:[ _]devices?)?\b[^\n]{0,20}\bQCOM\b"),
            sign("expected device", r"(?i)expected device\W{1,4}QCOM", r"\bCPU\b"),
        ),
    ),
    Symptom(
        "disk full",
        CERTAIN,
        "nothing more could be written, so what was being written is incomplete",
        "doit gc --dry-run, or df -h to see what fills the disk; then run the same again",
        (
            sign("no space left on device"),
            sign("enospc", r"\bENOSPC\b"),
            sign("database or disk is full"),
            sign("disk quota exceeded"),
        ),
    ),
    Symptom(
        "tinygrad's cache cannot be written",
        CERTAIN,
        "the compile cache lies where this user may not write, mostly root's, or is shared by two users",
        "set HOME, XDG_CACHE_HOME and TMPDIR to folders of your own (doit does, for each compile), then run "
        "the same again",
        (
            sign("permission denied", r"(?i)\.cache\b|/cache\b|tinygrad|cache\.db"),
            sign("read-only file system", r"(?i)\.cache\b|/cache\b|tinygrad|cache\.db"),
            sign("readonly database"),
            sign("unable to open database file"),
            sign("database is locked"),
        ),
    ),
    Symptom(
        "device not ready",
        CERTAIN,
        "the GPU that the flag set names is not on this machine, or not usable by this process",
        "run this on the device itself, or give the model a flag set of this machine in models.toml",
        (
            sign(
                "/dev/kgsl-3d0",
                r"(?i)No such file|not found|denied|busy|FileNotFoundError|PermissionError|Errno",
            ),
            sign("no interface for", r"(?i)no interface for \w{2,8}"),
            sign("device not ready"),
            sign("no usable devices"),
        ),
    ),
    Symptom(
        "model process gone or zombie",
        LIKELY,
        "the process that runs the model has died; what it printed last says why",
        "tmux capture-pane -pt 0; cat /data/community/crashes/error.log, then doit diagnose that log",
        (
            sign("<defunct>", rf"\b{PROCESSES}\b"),
            sign("zombie", rf"\b{PROCESSES}\b"),
            sign("out of memory: killed process", rf"\(\S{{0,40}}{PROCESSES}"),
            sign("segfault at", rf"\b{PROCESSES}\b"),
            sign(
                "modeld",
                rf"(?i)\b{PROCESSES}\b[^\n]{{0,20}}\b(?:died|crashed|disappeared|is gone|exited)\b"
                r"|modeld\b[^\n]{0,20}\bnot running\b",
            ),
            sign("modeld", rf"(?i)\b{PROCESSES}\b[^\n]{{0,20}}\bexit ?code:? (?!None|0\b)-?\d"),
            sign("watchdog timeout", rf"(?i)watchdog timeout for \S{{0,30}}{PROCESSES}\b"),
            sign("processnotrunning", rf"\b{PROCESSES}\b"),
        ),
    ),
    Symptom(
        "model services are dead",
        LIKELY,
        "nobody publishes them any more, because the process behind them has died or stalled:",
        "ps -ef | grep modeld; tmux capture-pane -pt 0, then doit diagnose what it shows",
        (
            sign("not_alive", rf"not_alive\W{{1,6}}\[[^\]\n]{{0,200}}\b(?:{'|'.join(SERVICES)})\b"),
            *(
                sign(
                    service.lower(),
                    rf"\b{service}\b(?! (?:is )?not )[^\n,;\]]{{0,20}}\b(?:dead|dying|died)\b"
                    rf"|\b{service}\b[^\n,;\]]{{0,20}}\b(?:alive|valid)[=: ]{{1,3}}False\b"
                    rf"|\b{service}\b[^\n,;\]]{{0,12}}\bnot (?:alive|publish\w{{1,3}}|updating|received)\b"
                    rf"|\b(?:dead|not alive|no)\b:? \b{service}\b",
                )
                for service in SERVICES
            ),
        ),
        words=SERVICES,
    ),
    Symptom(
        "commIssue spam",
        LIKELY,
        "the services behind the model stopped together, so everything that listens complains",
        "look for the first error before line {first}: the model process failed there",
        (sign("commissue", r"\bcommIssue\b"), sign("communication issue between processes")),
        least=SPAM,
    ),
    Symptom(
        "user interface frozen",
        LIKELY,
        "the UI waits for model messages that do not come, or the GPU is stuck in the model's kernels",
        "tmux capture-pane -pt 0 for the model process; doit flags SET --against SConscript for its flags",
        (
            sign("ui", rf"(?i)\bUI\b[^\n]{{0,20}}{FREEZE}"),
            sign("ui", rf"(?i){FREEZE}[^\n]{{0,10}}\bUI\b"),
            sign("watchdog timeout for ui"),
        ),
    ),
)

# Signs that are failures only in company: see diagnosis.py.
HARNESS_PASSED: Final = (
    sign(
        "force_onroad",
        r"(?i)\b(?:passed|pass|ok|success\w{0,4}|alive|survived|no crash)\b",
        never=r"(?i)\bnot\b|fail",
    ),
    sign(
        "harness",
        r"(?i)\b(?:passed|pass|ok|success\w{0,4}|alive|survived|no crash)\b",
        never=r"(?i)\bnot\b|fail",
    ),
)
FROZEN: Final = (
    sign("onroad", rf"(?i){FREEZE}", never=r"(?i)\bUI\b"),
    sign("launcher", rf"(?i){FREEZE}", never=r"(?i)\bUI\b"),
    sign("startup", rf"(?i){FREEZE}", never=r"(?i)\bUI\b"),
    sign("modeld", rf"(?i)\b{PROCESSES}\b[^\n]{{0,20}}(?:{FREEZE}|\bstall\w{{0,3}}\b|\bstuck\b|\bdeadlock)"),
)
POSENET: Final = (sign("posenet", r"(?i)mismatch"),)
COMPILE_LINE: Final = (
    sign(
        "dev=qcom",
        r"(?<![\w-])DEV=QCOM\b",
        r"\b(?:FLOAT16|IMAGE|NOLOCALS|JIT_BATCH_SIZE)=\d",
        never=r"OPENPILOT_HACKS=1\b",
    ),
)
PIECES: Final = (sign("arg=", r"\barg=\d{1,6}\b\W{0,3}(?:vs\.?|versus|!=|and|but)\W{0,3}\barg=\d{1,6}\b"),)
