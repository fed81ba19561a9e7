"""How much may be written: what is announced has to fit, before its first byte is asked for."""

import errno
import os
import shutil
from pathlib import Path

from rules.counting import counted

LARGEST = 64 << 30  # bytes of any one file; a driving model takes a hundredth of it
MARGIN = 256 << 20  # bytes that are left to everybody else


def free(folder: Path) -> int:
    """Bytes that may still be written under `folder`, which need not be there yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return max(0, shutil.disk_usage(folder).free - MARGIN)


def lacking(folder: Path, size: int) -> str:
    """Why a file of `size` bytes does not fit into `folder`; nothing when it does."""
    if size > LARGEST:
        return f"{counted(size, 'byte')} are announced, expected at most {LARGEST:,} of a model"
    if not (room := free(folder)):
        return f"{folder}: {os.strerror(errno.ENOSPC)}"
    if size > room:
        return f"{counted(size, 'byte')} are announced, and {folder} has room for {room:,}"
    return ""
