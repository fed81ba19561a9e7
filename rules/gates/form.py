"""Gates on what an artifact is: its bytes, its keys, how its captures are called and on what they ran."""

from collections.abc import Iterator, Mapping
from typing import Any

from rules.gates.evidence import HOST_DEVICE, Evidence, Finding
from rules.gates.promise import Histories, calls

FORMAT_VERSION = 1
METADATA_KEYS = ("model_checkpoint", "output_slices", "input_shapes", "output_shapes")
SINGLE, IQPILOT, GENERIC = "starpilot-single", "iqpilot-supercombo", "generic"


def container(evidence: Evidence) -> Iterator[Finding]:
    """Every file was loaded, and its bytes end where its content does."""
    stopped = None if evidence.seen["about"] else evidence.seen["stopped"]
    for name in evidence.sizes if stopped is None else ():
        yield Finding("container", name, "read to its end", "read to its end", True)
    if stopped is not None:
        yield Finding("container", _listed(evidence.sizes), stopped, "read to its end", False)


def form(evidence: Evidence) -> Iterator[Finding]:
    """Format version and the keys a runtime reads, and what the artifact says there."""
    for name, about in evidence.seen["about"].items():
        keys, said = _wanted(evidence, name)
        missing = sorted(set(keys) - set(about["keys"]))
        value = f"none of {_listed(missing)}" if missing else "all of them"
        yield Finding("format", f"{name}: keys", value, _listed(keys) or "none", not missing)
        for key, wanted in said.items():
            found = about["said"].get(key)
            same = found == wanted and type(found) is type(wanted)
            yield Finding("format", f"{name}: {key}", found, wanted, same)


def _wanted(evidence: Evidence, name: str) -> tuple[list[str], dict[str, Any]]:
    """The keys of one file, and the values known before it was made."""
    request, layout = evidence.request, evidence.request["layout"]
    if layout not in (SINGLE, IQPILOT, GENERIC):
        return list(METADATA_KEYS) if name.endswith("_metadata.pkl") else [], {}
    head = {} if layout == IQPILOT else {"format_version": FORMAT_VERSION, "model_type": request["kind"]}
    if layout == GENERIC:
        return [*head, "metadata", "run_model"], head
    jits = ["run_policy", *(repr(camera) for camera in evidence.cameras)]
    if layout == SINGLE:
        head |= _driving_values(request)
    return [*head, "metadata", "frame_skip", *jits], head


def _driving_values(request: Mapping[str, Any]) -> dict[str, Any]:
    model = Histories(request)
    said: dict[str, Any] = {"image_history_pipeline": request["contract"]}
    if request.get("behavior_version"):
        said["behavior_version"] = request["behavior_version"]
    return said if model.whole else said | {"policy_order": model.order}


def slices(evidence: Evidence) -> Iterator[Finding]:
    """Every slice of the metadata cuts something out of its network's output, and is the ONNX file's own."""
    for name, role, metadata in _networks(evidence):
        network = evidence.request["networks"][role]
        width = _width(network)
        own, said = network["output_slices"] or {}, metadata["slices"]
        good = bool(said)
        for head in dict.fromkeys([*own, *said]):
            ends = said.get(head)
            if ends is None or ends != own.get(head) or not _is_inside(ends, width):
                limit = f"{_shown(own.get(head))} of {width} columns"
                yield Finding("slices", f"{name}: {role}.{head}", _shown(ends), limit, False)
                good = False
        if good:
            yield Finding("slices", f"{name}: {role}", f"{len(said)} inside", f"inside {width} columns", True)


def _networks(evidence: Evidence) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """(file, role, metadata) of every network that an artifact describes."""
    networks = evidence.request["networks"]
    for name, about in evidence.seen["about"].items():
        for role, metadata in about["metadata"].items():
            file = name.removesuffix("_metadata.pkl").removeprefix("driving_")
            known = [one for one in (role, file) if one in networks]
            yield name, known[0] if known else next(iter(networks)), metadata


def _width(network: Mapping[str, Any]) -> int | None:
    outputs = list(network["outputs"].values())
    last = outputs[0]["shape"][-1:] if len(outputs) == 1 else []
    return int(last[0]) if last and isinstance(last[0], int) else None


def _is_inside(ends: list[int | None], width: int | None) -> bool:
    if width is None:
        return False
    start, stop, _ = slice(*ends).indices(width)
    return start <= stop and all(-width <= end <= width for end in ends if end is not None)


def _shown(ends: list[int | None] | None) -> str:
    return ":".join("" if end is None else str(end) for end in ends) if ends else "nothing"


def devices(evidence: Evidence) -> Iterator[Finding]:
    """Each capture ran on the device that the flag set promises, and otherwise on the host's NPY only.

    Frames lie on FRAME_DEV, and a policy takes what the warp's device made, so both may show; so do the
    networks' device in a warp that keeps the image queues, since a runtime has all queues there.
    """
    flags, request = evidence.flags, evidence.request
    queued = request.get("layout") == SINGLE and request.get("contract") == "warp"
    queues = {flags.expected_device} if queued else set()
    frames = flags.values.get("FRAME_DEV", flags.warp_device)
    warps = {f"{width}x{height}" for width, height in evidence.cameras}
    for label, capture in evidence.seen["captures"].items():
        own, other = (
            (flags.warp_device, frames) if label in warps else (flags.expected_device, flags.warp_device)
        )
        found = set(capture["devices"])
        allowed = dict.fromkeys((own, other, *(queues if label in warps else ()), HOST_DEVICE))
        good = own in found and found <= allowed.keys()
        limit = _listed(allowed)
        yield Finding("devices", label, _listed(sorted(found)), limit, good)


def arguments(evidence: Evidence) -> Iterator[Finding]:
    """Each capture insists on the argument names of the contract, and no others."""
    captures = evidence.seen["captures"]
    for label, call in calls(evidence.request).items():
        found = sorted(captures[label]["inputs"]) if label in captures else ["no capture"]
        yield Finding("arguments", label, _listed(found), _listed(sorted(call)), found == sorted(call))


def shapes(evidence: Evidence) -> Iterator[Finding]:
    """Shape and dtype of every argument and every network; how far a queue looks back is another gate's."""
    for label, name, found, wanted in _called(evidence):
        shape, expected = found["shape"], list(wanted.shape)
        if wanted.is_queue:
            shape, expected = ["depth", *(shape or [])[1:]], ["depth", *expected[1:]]
        good = found["dtype"] == wanted.dtype and shape in (expected, None)
        limit = f"{wanted.dtype} {_shape(expected)}"
        yield Finding("shapes", f"{label} {name}", f"{found['dtype']} {_shape(shape)}", limit, good)
    for name, role, metadata in _networks(evidence):
        for side in ("inputs", "outputs"):
            specs = evidence.request["networks"][role][side].items()
            own, said = {one: spec["shape"] for one, spec in specs}, metadata[side]
            good = list(said) == list(own) and all(_fits(said[one], own[one]) for one in own)
            yield Finding("shapes", f"{name}: {role} {side}", _named(said), _named(own), good)
    yield from _given(evidence)


def _given(evidence: Evidence) -> Iterator[Finding]:
    """What comes out of each network, against what its ONNX file declares; drivers get float32 of any."""
    as_declared = evidence.request["layout"] == GENERIC
    first = {role: seen for step in evidence.seen["replay"][:1] for role, seen in step["networks"].items()}
    for role, seen in first.items():
        declared = evidence.request["networks"][role]["outputs"].items()
        for (name, spec), (dtype, shape) in zip(declared, seen["given"], strict=False):
            wanted = spec["dtype"] if as_declared else "float32"
            good = dtype == wanted and _fits(shape, spec["shape"])
            subject, limit = f"{role} output {name}", f"{wanted} {_shape(spec['shape'])} as declared"
            yield Finding("shapes", subject, f"{dtype} {_shape(shape)}", limit, good)


def _fits(shape: list[int], declared: list[Any]) -> bool:
    """Whether a shape is one that is declared; a size without a number may be any."""
    pairs = zip(shape, declared, strict=False)
    return len(shape) == len(declared) and all(
        own in (one, None) or isinstance(own, str) for one, own in pairs
    )


def _named(shapes: Mapping[str, list[Any]]) -> str:
    return ", ".join(f"{name} {_shape(shape)}" for name, shape in shapes.items())


def depth(evidence: Evidence) -> Iterator[Finding]:
    """How far each queue looks back, and the artifact's own word on the frame skip that this follows from."""
    for label, name, found, wanted in _called(evidence):
        if wanted.is_queue:
            value = (found["shape"] or [None])[0]
            yield Finding("depth", f"{label} {name}", value, wanted.shape[0], value == wanted.shape[0])
    for name, about in evidence.seen["about"].items():
        if "frame_skip" in about["said"]:
            value, limit = about["said"]["frame_skip"], evidence.request["frame_skip"]
            yield Finding("depth", f"{name}: frame_skip", value, limit, value == limit)


def _called(evidence: Evidence) -> Iterator[tuple[str, str, Mapping[str, Any], Any]]:
    """(capture, argument, as found, as promised) of every argument that is there."""
    captures = evidence.seen["captures"]
    for label, call in calls(evidence.request).items():
        found = captures[label]["inputs"] if label in captures else {}
        for name, wanted in call.items():
            if name in found:
                yield label, name, found[name], wanted


def _shape(shape: list[Any] | None) -> str:
    return "unread" if shape is None else "x".join(map(str, shape))


def size(evidence: Evidence) -> Iterator[Finding]:
    """The files are as large as their weights suggest: a tiny one holds none, a huge one holds them twice."""
    limits, found = evidence.limits, sum(evidence.sizes.values())
    least = int(limits.least_size * evidence.weights)
    most = int(limits.most_size * evidence.weights) + limits.slack
    limit = f"{least:,} to {most:,} bytes, for {evidence.weights:,} of weights"
    yield Finding("size", _listed(evidence.sizes), f"{found:,} bytes", limit, least <= found <= most)


def _listed(names: Any) -> str:
    return ", ".join(names)
