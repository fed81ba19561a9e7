"""Random mutations of sound artifacts against the inspector: always a verdict, never an exception or a hang.

Run it for as long as you like: `python tests/fuzz_inspection.py [ROUNDS] [SEED] [FILE…]`. With `--load`, what
the inspector calls ok is really loaded, in a sandbox, and must touch nothing. A failing input is kept as
`fuzz-failure.bin`.
"""

import pickle
import random
import struct
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from growing import edited, grown, opcodes_of
from sandbox import Sandbox, made

from rules.inspection import Report, inspect

INTERESTING = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    *b"cRib(.0123]}teusdhjrq2PQ\x8c\x93\x94\x95\x97\x8e\x8b\x82\x81\x92\x98",
)
LENGTHS = (-1, 0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63))


def samples() -> list[bytes]:
    """Sound artifacts without any tinygrad in them: every protocol, and one with buffers out of band."""
    data = {
        "format_version": 1,
        (1928, 1208): [slice(0, None), {1.5, "x"}, bytearray(300), None, 2**70],
        "metadata": {"model": {"input_shapes": {"img": (1, 12, 128, 256)}, "output_slices": {}}},
    }
    in_band = [pickle.dumps(data, protocol) for protocol in range(6)]
    return [*in_band, out_of_band(data, [b"w" * 40, b"", b"v" * 9])]


def out_of_band(data: object, contents: list[bytes]) -> bytes:
    """`data` and buffers of `contents` in the out-of-band form."""
    buffers: list[pickle.PickleBuffer] = []
    held = [data, [pickle.PickleBuffer(content) for content in contents]]
    opcodes = pickle.dumps(held, 5, buffer_callback=buffers.append)
    tail = (struct.pack("<q", len(raw)) + raw for raw in (bytes(buffer.raw()) for buffer in buffers))
    return struct.pack("<q", len(opcodes)) + opcodes + b"".join(tail)


def mutated(sound: bytes, chance: random.Random) -> bytes:
    """`sound` with one to eight changes: bytes flipped, lengths planted, stretches cut, doubled or moved."""
    content = bytearray(sound)
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(content) + 1)
        match chance.randrange(6):
            case 0:
                content[at : at + 1] = bytes([chance.choice(INTERESTING)])
            case 1:
                content[at : at + 8] = struct.pack("<q", chance.choice(LENGTHS))
            case 2:
                del content[at:]
            case 3:
                del content[at : at + chance.randint(1, 40)]
            case 4:
                content[at:at] = content[at : at + chance.randint(1, 40)] * chance.randint(1, 50)
            case 5:
                content[at:at] = bytes(chance.choice(INTERESTING) for _ in range(chance.randint(1, 30)))
    return bytes(content)


def check(report: Report) -> None:
    """What holds for every input whatever."""
    assert report.exit_code in (0, 1, 2)
    assert (report.verdict == "ok") == (report.exit_code == 0)
    assert len(report.verdict) < 20_000
    report.as_json()


def fuzz(rounds: int, seed: int, seeds: list[bytes], folder: Path) -> dict[str, int]:
    """Inspect `rounds` mutations; returns how often each kind of verdict was given."""
    chance = random.Random(seed)
    verdicts: dict[str, int] = {}
    file = folder / "fuzz.pkl"
    for _ in range(rounds):
        content = mutated(chance.choice(seeds), chance)
        file.write_bytes(content)
        try:
            report = inspect(file)
            check(report)
        except BaseException:
            Path("fuzz-failure.bin").write_bytes(content)
            raise
        kind = report.problems[0].kind if report.problems else "ok"
        verdicts[kind] = verdicts.get(kind, 0) + 1
    return verdicts


def candidates(seeds: list[bytes], chance: random.Random) -> Callable[[], bytes]:
    """Pickles to load: grown ones, and edits of `seeds`."""
    taken_apart = [opcodes_of(seed) for seed in seeds]

    def drawn() -> bytes:
        if chance.random() < 0.5:
            return grown(chance)
        return edited(chance.choice(taken_apart), chance.choice(taken_apart), chance)

    return drawn


def fuzz_loading(rounds: int, seed: int, seeds: list[bytes], folder: Path, sandbox: Sandbox) -> Counter[str]:
    """Inspect `rounds` pickles and load those that are ok; returns how often each ended how.

    Raises AssertionError where loading one touched anything.
    """
    drawn, ends = candidates(seeds, random.Random(seed)), Counter[str]()
    file = folder / "load.pkl"
    for _ in range(rounds):
        content = drawn()
        file.write_bytes(content)
        report = inspect(file)
        check(report)
        if report.verdict != "ok":
            ends[report.problems[0].kind] += 1
            continue
        answer = sandbox.load(file)
        ends[f"ok, {answer['end']}"] += 1
        if answer["touched"]:
            Path("fuzz-failure.bin").write_bytes(content)
            raise AssertionError(f"ok, but loading it touched {answer['touched']}")
    return ends


def main(arguments: list[str]) -> None:
    """Fuzz as the command line says."""
    loading = "--load" in arguments
    given = [one for one in arguments if one != "--load"]
    rounds, seed = (int(text) for text in (*given[:2], *("20000", "0")[len(given[:2]) :]))
    seeds = [Path(name).read_bytes() for name in given[2:]]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if not loading:
            print(fuzz(rounds, seed, seeds or samples(), folder))
            return
        made(folder / "small.pkl")
        seeds.append((folder / "small.pkl").read_bytes())
        with Sandbox() as sandbox:
            print(fuzz_loading(rounds, seed, seeds, folder, sandbox))


if __name__ == "__main__":
    main(sys.argv[1:])
