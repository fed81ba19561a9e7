"""Capturing a function as a TinyJit, and reading back what a capture holds."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from tinygrad import TinyJit
from tinygrad.device import MultiBuffer
from tinygrad.engine.jit import JitError
from tinygrad.uop.ops import Ops, UOp, buffers


def jit(function: Callable[..., Any]) -> Any:
    """A pruned TinyJit that captures on its very first call.

    tinygrad warms up on call 0 and captures on call 1; the warm-up lowers every kernel a second time for
    nothing, because all shapes are fixed here.
    """
    captured = TinyJit(function, prune=True)
    captured.cnt = 1
    return captured


@contextmanager
def saying_what_is_empty() -> Iterator[None]:
    """For a first call in the block: say of a network without a kernel that it has none."""
    try:
        yield
    except JitError as error:
        if "didn't JIT anything" not in str(error):
            raise
        raise RuntimeError(
            "no kernel comes of it, so there is nothing to compile: what it gives stands in the file, and"
            " follows from no input"
        ) from None


def devices(captured: Any) -> list[str]:
    """The devices that a captured JIT's buffers live on, sorted."""
    found: set[str] = set()
    for node in _nodes(captured):
        if node.op in (Ops.BUFFER, Ops.PARAM) and (device := node.device) is not None:
            found.update((device,) if isinstance(device, str) else device)
    return sorted(found)


def names(captured: Any) -> list[str]:
    """The argument names a captured JIT insists on."""
    return [str(name) for name in captured.captured.expected_names]


def inputs(captured: Any) -> dict[str, dict[str, Any]]:
    """The arguments a captured JIT insists on, by name: shape, dtype (numpy's name) and device.

    The shape of a flat argument is that of its buffer, which tinygrad does not compare when it is called; it
    is None when nothing reads the argument.
    """
    one = captured.captured
    sizes = _sizes(one)
    described = zip(one.expected_names, one.expected_input_info, strict=True)
    return {
        str(name): {
            "shape": list(view.marg) if view.op is Ops.RESHAPE else sizes.get(slot),
            "dtype": np.dtype(dtype.fmt).name if dtype.fmt else dtype.name,
            "device": device,
        }
        for slot, (name, (view, _, dtype, device)) in enumerate(described)
    }


def _sizes(captured: Any) -> dict[int, list[int]]:
    """The shapes of the buffers that a capture's calls read or write, by the argument's number."""
    linear: UOp = captured._linear
    handed = (argument for call in linear.src for argument in call.src[1:])
    bases = (node for argument in handed for node in argument.toposort() if node.op is Ops.PARAM)
    return {node.arg.slot: list(node.shape) for node in bases}


def kernels(captured: Any) -> int:
    """How many kernels a captured JIT runs, graphed ones counted singly."""
    return len({kernel for node in _nodes(captured) for kernel in node.src if kernel.op is Ops.PROGRAM})


def _nodes(captured: Any) -> Iterable[UOp]:
    """All that a capture consists of, but for what makes up its kernels."""
    nodes: Iterable[UOp] = captured.captured._linear.toposort(gate=lambda node: node.op is not Ops.PROGRAM)
    return nodes


def release_intermediates(*captures: Any) -> None:
    """Drop the scratch buffers of captures, so that pickling them stores weights and nothing else.

    tinygrad forgets their views, which would go on writing to where a buffer was before; any view finds its
    address again when it is used.
    """
    for buffer in list(buffers.values()):
        for view in buffer.bufs if isinstance(buffer, MultiBuffer) else (buffer,):
            if view.base is not view and view.is_initialized():
                view.deallocate()
    for captured in captures:
        captured.captured.free_intermediates()
