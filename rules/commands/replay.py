"""`doit replay ID`: drive a verified artifact for a while, as its runtime would, and say how it went."""

import re
from pathlib import Path
from typing import Any

from rules.catalog import Camera
from rules.commands.arguments import UsageError, option
from rules.commands.command import CatalogCommand

SIZE = re.compile(r"([1-9][0-9]{1,4})x([1-9][0-9]{1,4})")
FILES = ("frames", "messages", "save", "plot")


class Replay(CatalogCommand):
    """Exit code 0 when every frame was run in time and all numbers were finite, 1 when not."""

    name = "replay"
    doc_purpose = "drive an artifact at 20 Hz: frames in, decoded outputs and latencies out"
    doc_usage = "ID|monitoring"
    doc_description = None
    least = most = 1
    cmd_options = (
        option("camera", "which camera's frames, WIDTHxHEIGHT (default: the model's first)", kind=str),
        option("seconds", "how long (default 15)", kind=float, default=15.0),
        option("speed", "the car's speed in m/s (default 15.0)", kind=float, default=15.0),
        option("frames", "a FILE.nv12, a folder of them, or a video (default: a made scene)", kind=str),
        option("messages", "write what a publisher would fill, one JSON line a frame", kind=str),
        option("save", "write outputs, raw and decoded, as .npz", kind=str),
        option("plot", "draw path, lane lines and latencies (.svg or .png)", kind=str),
    )

    def act(self, options: dict[str, Any], operands: list[str]) -> int:
        """Replay the one model named."""
        from rules.playback import replaying

        wish = replaying.Wish(
            camera=camera(options["camera"]),
            seconds=_within("seconds", options["seconds"], 0.05, 86400),
            speed=_within("speed", options["speed"], 0, 100),
            **{name: Path(options[name]).resolve() if options[name] else None for name in FILES},
        )
        if wish.plot is not None and wish.plot.suffix not in (".svg", ".png"):
            raise UsageError(f"--plot {wish.plot.name}: expected a name that ends in .svg or .png")
        report = replaying.replay(self.yard(options).graph, operands[0], wish)
        print(report)
        return 0 if report.good else 1


def camera(text: str | None) -> Camera | None:
    """A camera as it is typed: `1928x1208`. Raises UsageError."""
    if text is None:
        return None
    if (match := SIZE.fullmatch(text)) is None:
        raise UsageError(f"--camera {text}: expected WIDTHxHEIGHT in pixels", fix="--camera 1928x1208")
    return Camera(int(match[1]), int(match[2]))


def _within(name: str, value: float, least: float, most: float) -> float:
    if not least <= value <= most:
        raise UsageError(f"--{name} {value:g}: expected a number from {least:g} to {most:g}")
    return value
