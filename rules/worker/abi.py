"""What artifacts say of themselves and how their captures want to be called, as JSON; the host judges it."""

from typing import Any

from . import capture

PLAIN = (str, int, float, bool, type(None))


def about(content: Any) -> dict[str, Any]:
    """The keys, plain values and metadata of one file's content; nothing of a JIT that is a file by itself.

    A key that is no text stands as its repr: `(1928, 1208)`. Metadata is by network; that of a file which is
    metadata itself, or which holds that of a single network, stands under "".
    """
    if not isinstance(content, dict):
        return {"keys": [], "said": {}, "metadata": {}}
    own = content if "output_slices" in content else content.get("metadata", {})
    if "output_slices" in own:
        own = {"": own}
    return {
        "keys": [key if isinstance(key, str) else repr(key) for key in content],
        "said": {k: v for k, v in content.items() if isinstance(k, str) and _is_plain(v)},
        "metadata": {str(role): _metadata(one) for role, one in own.items()},
    }


def captured(captures: dict[str, Any]) -> dict[str, Any]:
    """What each capture was made on, how it is called, and how much it runs."""
    return {
        label: {
            "devices": capture.devices(one),
            "inputs": capture.inputs(one),
            "kernels": capture.kernels(one),
        }
        for label, one in captures.items()
    }


def _is_plain(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, list) and all(isinstance(v, PLAIN) for v in value))


def _metadata(one: dict[str, Any]) -> dict[str, Any]:
    return {
        "slices": {name: [cut.start, cut.stop] for name, cut in one["output_slices"].items()},
        "inputs": {name: list(shape) for name, shape in one["input_shapes"].items()},
        "outputs": {name: list(shape) for name, shape in one["output_shapes"].items()},
    }
