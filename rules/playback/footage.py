"""The camera frames that a replay is given: NV12 files as they are, or a video turned into one."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

from rules.catalog import Camera
from rules.counting import counted
from rules.errors import SourceError
from rules.worker.nv12 import Nv12

SUFFIX = ".nv12"
PAIR = ("road", "wide")

Footage = dict[str, Any]


def found(path: Path, camera: Camera, seconds: float, scratch: Path) -> Footage:
    """Files for the road and the wide camera, and whether their frames are tight, as the worker takes them.

    `path` is a file of one or more frames end to end, a folder of such files, a folder with `road` and `wide`
    in it, or a video, which ffmpeg turns into a file in `scratch`. Frames have the camera's own layout, or
    are tight (width*height*3/2 bytes). Raises SourceError when there is nothing of the kind.
    """
    if path.is_dir() and all((path / one).is_dir() for one in PAIR):
        road, wide = (_files(path / one) for one in PAIR)
    elif path.is_dir():
        road = wide = _files(path)
    elif path.suffix == SUFFIX:
        road = wide = [path]
    else:
        road = wide = [_converted(path, camera, seconds, scratch)]
    tight = {_is_tight(one, camera) for one in (*road, *wide)}
    if len(tight) > 1:
        raise SourceError(
            f"{path}: some frames are tight, others padded to the camera's layout, expected one of both",
            fix="give them in separate folders",
        )
    return {"road": list(map(str, road)), "wide": list(map(str, wide)), "tight": tight.pop()}


def _files(folder: Path) -> list[Path]:
    names = sorted(one.name for one in folder.iterdir() if one.suffix == SUFFIX)
    files = [(folder / name).resolve() for name in names if not name.startswith("._")]
    if not files:
        raise SourceError(
            f"{folder}: found no file that ends in {SUFFIX}, expected one or more",
            fix=f"name the frames 0001{SUFFIX}, 0002{SUFFIX}, …",
        )
    return files


def _is_tight(path: Path, camera: Camera) -> bool:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise SourceError(f"{path}: {error.strerror}, expected NV12 frames", fix="correct --frames") from None
    padded, tight = Nv12.of(camera.width, camera.height).size, camera.width * camera.height * 3 // 2
    for one in (padded, tight):
        if size and size % one == 0:
            return one == tight
    raise SourceError(
        f"{path}: {counted(size, 'byte')}, "
        f"expected a multiple of {padded:,} or of {tight:,} (NV12, {camera})",
        fix="give frames of this size, or name theirs with --camera",
    )


def _converted(video: Path, camera: Camera, seconds: float, scratch: Path) -> Path:
    from rules.worker.runtime.scene import RATE

    if not video.is_file():
        raise SourceError(f"{video}: no such file", fix="correct --frames")
    ffmpeg = shutil.which("ffmpeg")
    if ffmpeg is None:
        raise SourceError(
            f"{video}: a video needs ffmpeg, and it is not on PATH",
            fix=f"install ffmpeg, or give NV12 frames (FILE{SUFFIX}, or a folder of them)",
        )
    final = (scratch / f"{camera}{SUFFIX}").resolve()
    shape = f"scale={camera.width}:{camera.height},fps={RATE}"
    frames = ["-vf", shape, "-t", str(seconds), "-pix_fmt", "nv12", "-f", "rawvideo", str(final)]
    command = [ffmpeg, "-nostdin", "-v", "error", "-i", str(video.resolve()), *frames]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise SourceError(f"{video}: ffmpeg cannot read it: {said[-1]}", fix="give another video")
    return final
