"""A picture of a replay: the last frame's path and lane lines from above, and the latencies over time.

SVG is text and PNG is a zlib stream, so neither needs a drawing library.
"""

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rules.errors import YardError
from rules.keeping.files import canonical, write_bytes
from rules.playback import BUDGET_MS

WIDTH, ROW, MARGIN, HEAD = 960, 400, 50, 30
GLYPH, SCALE = (3, 5), 2
STROKE = 2
INK, FAINT, PATH, LINE, EDGE, LEAD, LIMIT = (
    "#222222",
    "#bbbbbb",
    "#1a7f37",
    "#1f6feb",
    "#8250df",
    "#d29922",
    "#cf222e",
)
NEAR, FAR = 10.0, 120.0  # metres: how far ahead a picture reaches at least and at most

# Each digit of a glyph is one row of three pixels, from the top.
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,-/%:+()_= "
ROWS = (
    "257556565634443655567464774644345535575572227111525565544447577556555525552656442557365655342167222255557"
    "555525577555255552227124775557262277174771717557117471774757711227575775717000020002400700112445124502020"
    "027202444221112000070707000000"
)
FONT = {letter: ROWS[GLYPH[1] * at : GLYPH[1] * (at + 1)] for at, letter in enumerate(LETTERS)}

Point = tuple[float, float]


@dataclass
class Canvas:
    """Lines and texts in pixels, y downwards."""

    height: int
    lines: list[tuple[list[Point], str]] = field(default_factory=list)
    texts: list[tuple[Point, str]] = field(default_factory=list)

    def line(self, points: Sequence[Point], colour: str) -> None:
        """A polyline."""
        self.lines.append((list(points), colour))

    def text(self, at: Point, text: str) -> None:
        """A text whose top left corner is `at`."""
        self.texts.append((at, text))


@dataclass
class Panel:
    """A rectangle of a canvas (x, y, width, height) that shows `across` by `up`, each (least, most)."""

    canvas: Canvas
    place: tuple[float, float, float, float]
    across: Point
    up: Point

    def frame(self, title: str) -> None:
        """The border, the title, and the four limits."""
        x, y, width, height = self.place
        corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)]
        self.canvas.line(corners, FAINT)
        self.canvas.text((x, y - 16), title)
        self.canvas.text((x, y + height + 4), f"{self.across[0]:.4g}")
        self.canvas.text((x + width - 30, y + height + 4), f"{self.across[1]:.4g}")
        self.canvas.text((x - 40, y), f"{self.up[1]:.4g}")
        self.canvas.text((x - 40, y + height - 10), f"{self.up[0]:.4g}")

    def draw(self, across: Any, up: Any, colour: str) -> None:
        """A curve; it breaks where it leaves the panel or is no number."""
        run: list[Point] = []
        for a, b in zip(across, up, strict=True):
            inside = self.across[0] <= a <= self.across[1] and self.up[0] <= b <= self.up[1]
            if inside:
                run.append(self._pixel(float(a), float(b)))
            if run and not inside:
                self.canvas.line(run, colour)
                run = []
        if run:
            self.canvas.line(run, colour)

    def _pixel(self, a: float, b: float) -> Point:
        x, y, width, height = self.place
        (left, right), (low, high) = self.across, self.up
        return x + width * (a - left) / (right - left), y + height * (high - b) / (high - low)


def plot(outputs: Path, final: Path, title: str) -> None:
    """Draw the `.npz` of a replay into `final`, an `.svg` or a `.png`, one row for each camera.

    Raises YardError for any other ending.
    """
    import numpy as np

    forms = {".svg": svg, ".png": png}
    if final.suffix not in forms:
        raise YardError(
            f"{final}: a picture in {final.suffix or 'no'} format, expected .svg or .png", fix="rename it"
        )
    with np.load(outputs, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    cameras = list(dict.fromkeys(name.partition("/")[0] for name in arrays))
    canvas = Canvas(HEAD + ROW * len(cameras))
    canvas.text((10, 10), title)
    for number, camera in enumerate(cameras):
        own = {n.partition("/")[2]: array for n, array in arrays.items() if n.startswith(f"{camera}/")}
        _row(canvas, HEAD + ROW * number, camera, own)
    write_bytes(canonical(final), forms[final.suffix](canvas))


def _row(canvas: Canvas, top: int, camera: str, arrays: dict[str, Any]) -> None:
    from rules.worker.runtime.scene import RATE

    half, height = WIDTH / 2 - 2 * MARGIN, ROW - 2 * MARGIN
    left = (MARGIN, top + MARGIN, half, height)
    right = (WIDTH / 2 + MARGIN, top + MARGIN, half, height)
    seconds = arrays["frame_id"] / RATE
    if "plan" in arrays or "lane_lines" in arrays:
        _from_above(canvas, left, camera, arrays)
    else:
        _seats(canvas, left, camera, seconds, arrays)
    ms = 1000 * arrays["latency_s"]
    panel = Panel(canvas, right, (0, _span(seconds)), (0, max(BUDGET_MS, float(ms.max())) * 1.1))
    panel.frame("latency in ms over seconds, budget in red")
    panel.draw(panel.across, (BUDGET_MS, BUDGET_MS), LIMIT)
    panel.draw(seconds, ms, INK)


def _span(seconds: Any) -> float:
    return max(float(seconds[-1]), 0.05)


def _from_above(
    canvas: Canvas, place: tuple[float, float, float, float], camera: str, arrays: dict[str, Any]
) -> None:
    """The last frame: metres to the right across, metres ahead upwards."""
    import numpy as np

    from rules.worker.runtime.decode import DISTANCES, POSITION

    last = {name: array[-1] for name, array in arrays.items()}
    path = last["plan"][:, POSITION] if "plan" in last else np.zeros((1, 3))
    curves = [(line[:, 0], DISTANCES, LINE) for line in last.get("lane_lines", ())]
    curves += [(line[:, 0], DISTANCES, EDGE) for line in last.get("road_edges", ())]
    curves += [(path[:, 1], path[:, 0], PATH)]
    curves += [(lead[:, 1], lead[:, 0], LEAD) for lead in last.get("lead", ())]
    reach = min(max(NEAR, float(np.nan_to_num(path[:, 0]).max())), FAR)
    shown = np.concatenate([a[(u >= 0) & (u <= reach)] for a, u, _ in curves])
    side = max(NEAR, float(np.nan_to_num(np.abs(shown)).max(initial=0.0)))
    panel = Panel(canvas, place, (-side, side), (0, reach))
    panel.frame(f"{camera}: path, lane lines, edges, leads in m")
    for across, up, colour in curves:
        panel.draw(across, up, colour)


def _seats(
    canvas: Canvas,
    place: tuple[float, float, float, float],
    camera: str,
    seconds: Any,
    arrays: dict[str, Any],
) -> None:
    panel = Panel(canvas, place, (0, _span(seconds)), (0, 1))
    panel.frame(f"{camera}: face left (blue), right (violet)")
    for side, colour in (("lhd", LINE), ("rhd", EDGE)):
        if f"face_prob_{side}" in arrays:
            panel.draw(seconds, arrays[f"face_prob_{side}"][:, 0], colour)


def svg(canvas: Canvas) -> bytes:
    """The canvas as SVG 1.1."""
    return "\n".join(_svg(canvas)).encode() + b"\n"


def _svg(canvas: Canvas) -> Iterator[str]:
    size = f'width="{WIDTH}" height="{canvas.height}" viewBox="0 0 {WIDTH} {canvas.height}"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    for points, colour in canvas.lines:
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="{STROKE}"/>'
    for (x, y), text in canvas.texts:
        style = f'font-family="monospace" font-size="11" fill="{INK}"'
        yield f'<text x="{x:.1f}" y="{y + 9:.1f}" {style}>{escape(text)}</text>'
    yield "</svg>"


def png(canvas: Canvas) -> bytes:
    """The canvas as an 8-bit RGB PNG (ISO/IEC 15948), every row unfiltered."""
    import numpy as np

    picture = np.full((canvas.height, WIDTH, 3), 255, np.uint8)
    for points, colour in canvas.lines:
        for start, end in zip(points, points[1:] or points, strict=False):
            _stroke(picture, start, end, _rgb(colour))
    for at, text in canvas.texts:
        _write(picture, at, text)
    rows = np.concatenate([np.zeros((canvas.height, 1), np.uint8), picture.reshape(canvas.height, -1)], 1)
    header = struct.pack(">IIBBBBB", WIDTH, canvas.height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour.removeprefix("#")))


def _stroke(picture: Any, start: Point, end: Point, colour: tuple[int, ...]) -> None:
    import numpy as np

    count = int(max(abs(end[0] - start[0]), abs(end[1] - start[1]))) + 2
    columns = np.linspace(start[0], end[0], count).round().astype(int)
    rows = np.linspace(start[1], end[1], count).round().astype(int)
    for right in range(STROKE):
        for down in range(STROKE):
            picture[(rows + down).clip(0, len(picture) - 1), (columns + right).clip(0, WIDTH - 1)] = colour


def _write(picture: Any, at: Point, text: str) -> None:
    import numpy as np

    left, top = int(at[0]), int(at[1])
    for letter in text.upper():
        rows = [[int(digit) >> bit & 1 for bit in (2, 1, 0)] for digit in FONT.get(letter, FONT["-"])]
        glyph = np.array(rows, bool).repeat(SCALE, 0).repeat(SCALE, 1)
        spot = picture[top : top + len(glyph), left : left + glyph.shape[1]]
        spot[glyph[: spot.shape[0], : spot.shape[1]]] = _rgb(INK)
        left += (GLYPH[0] + 1) * SCALE
