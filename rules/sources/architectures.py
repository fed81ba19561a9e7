"""The networks that can be generated: each fills a graph with the inputs and outputs of a real model.

Weights are drawn so that none is dead: no bias is cancelled by a softmax or a normalisation, no activation
has a flat half, and the scale of a matrix follows its fan-in, so float16 rounding hides nothing.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

Slices = dict[str, slice]

IMAGE = (1, 12, 128, 256)
MONITOR_HEIGHT, MONITOR_WIDTH = 960, 1440
HIDDEN = 512

SEEN_WIDTHS = {
    "meta": 55,
    "desire_pred": 32,
    "pose": 12,
    "wide_from_device_euler": 6,
    "road_transform": 12,
    "lane_lines": 528,
    "lane_lines_prob": 8,
    "road_edges": 264,
    "lead": 144,
    "lead_prob": 3,
}
OLD_WIDTHS = {
    "plan": 4955,
    "lane_lines": 528,
    "lane_lines_prob": 8,
    "road_edges": 264,
    "lead": 102,
    "lead_prob": 3,
    "desire_state": 8,
    "meta": 55,
    "desire_pred": 32,
    "pose": 12,
    "wide_from_device_euler": 6,
    "sim_pose": 12,
    "road_transform": 12,
    "desired_curvature": 2,
}
DRIVER_WIDTHS = {
    "face_descs": 12,
    "face_prob": 1,
    "left_eye_prob": 1,
    "right_eye_prob": 1,
    "sunglasses_prob": 1,
    "left_blink_prob": 1,
    "right_blink_prob": 1,
    "using_phone_prob": 1,
    "sleep_prob": 1,
}


def spans(widths: dict[str, int]) -> Slices:
    """Consecutive slices of the given widths, from column 0."""
    ends = np.cumsum(list(widths.values())).tolist()
    return {name: slice(end - widths[name], end) for name, end in zip(widths, ends, strict=True)}


def halvings(fan_in: int) -> int:
    """The k for which 2^-k is nearest to the unit-variance scale sqrt(3 / fan_in), in integers only."""
    k = 0
    while 6 * 4**k < fan_in:
        k += 1
    return k


class Graph:
    """ONNX nodes, float16 initializers and the input/output contract of one network under construction.

    Every layer method takes and returns names of values. `name` and `seed` alone decide the weights.
    """

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.seed = seed
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}
        self.slices: Slices = {}
        self.columns = 0

    def input(self, name: str, *shape: int, kind: int = TensorProto.FLOAT16) -> str:
        self.inputs.append(onnx.helper.make_tensor_value_info(name, kind, shape))
        return name

    def split(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: object) -> None:
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, outputs, name=name, **attributes))

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        out = f"{kind.lower()}_{len(self.nodes)}_out"
        self.split(kind, inputs, [out], **attributes)
        return out

    def weight(self, name: str, *shape: int, halved: int, centre: int = 0) -> str:
        """A float16 tensor of odd multiples of 2^-8, scaled by 2^-halved around `centre`: exact, never zero.

        The integers are the SHAKE-256 stream (FIPS 202) of "<graph>/<tensor>/<seed>". A name met twice is
        the same tensor.
        """
        if name not in self.tensors:
            text = f"{self.name}/{name}/{self.seed}"
            stream = hashlib.shake_256(text.encode()).digest(math.prod(shape))
            odd = np.frombuffer(stream, np.uint8).astype(np.float32) * 2 - 255
            values = odd * np.float32(2.0 ** -(8 + halved)) + np.float32(centre)
            self._keep(name, TensorProto.FLOAT16, shape, values.astype("<f2").tobytes())
        return name

    def constant(self, name: str, value: float) -> str:
        self._keep(name, TensorProto.FLOAT16, (), np.asarray(value, "<f2").tobytes())
        return name

    def integers(self, *values: int) -> str:
        name = "int64." + ".".join(map(str, values))
        self._keep(name, TensorProto.INT64, (len(values),), np.asarray(values, "<i8").tobytes())
        return name

    def _keep(self, name: str, kind: int, shape: Sequence[int], raw: bytes) -> None:
        self.tensors[name] = TensorProto(name=name, data_type=kind, dims=shape, raw_data=raw)

    def conv(self, name: str, x: str, *shape: int, stride: int = 1, pad: int = 0, group: int = 1) -> str:
        """A convolution with bias and weights of `shape` (out, in / group, *kernel)."""
        kernel = shape[2:]
        weight = self.weight(f"{name}.weight", *shape, halved=halvings(math.prod(shape[1:])))
        bias = self.weight(f"{name}.bias", shape[0], halved=2)
        strides, pads = [stride] * len(kernel), [pad] * 2 * len(kernel)
        return self.op("Conv", x, weight, bias, kernel_shape=kernel, strides=strides, pads=pads, group=group)

    def dense(self, name: str, x: str, before: int, after: int) -> str:
        """A fully connected layer with bias, (1, before) → (1, after)."""
        weight = self.weight(f"{name}.weight", after, before, halved=halvings(before))
        return self.op("Gemm", x, weight, self.weight(f"{name}.bias", after, halved=2), transB=1)

    def matmul(self, name: str, x: str, before: int, after: int) -> str:
        """A linear map of the last axis, without bias."""
        return self.op("MatMul", x, self.weight(f"{name}.weight", before, after, halved=halvings(before)))

    def biased(self, name: str, x: str, *shape: int) -> str:
        return self.op("Add", x, self.weight(f"{name}.bias", *shape, halved=2))

    def norm(self, name: str, x: str, size: int) -> str:
        """Layer normalisation over the last axis."""
        scale = self.weight(f"{name}.scale", size, halved=1, centre=1)
        return self.op("LayerNormalization", x, scale, self.weight(f"{name}.bias", size, halved=2), axis=-1)

    def gelu(self, x: str) -> str:
        """x/2 (1 + erf(x / √2)), spelled out because opset 17 has no Gelu."""
        error = self.op("Erf", self.op("Div", x, self.constant("gelu.root", 1.4140625)))
        raised = self.op("Mul", x, self.op("Add", error, self.constant("gelu.one", 1.0)))
        return self.op("Mul", raised, self.constant("gelu.half", 0.5))

    def silu(self, x: str) -> str:
        return self.op("Mul", x, self.op("Sigmoid", x))

    def elu(self, x: str) -> str:
        return self.op("Elu", x, alpha=1.0)

    def leaky(self, x: str) -> str:
        return self.op("LeakyRelu", x, alpha=0.25)

    def concat(self, *values: str, axis: int = 1) -> str:
        return self.op("Concat", *values, axis=axis)

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.integers(*shape))

    def last(self, x: str) -> str:
        """The last entry along axis 1, (1, T, C) → (1, C)."""
        found = self.op("Slice", x, self.integers(-1), self.integers(2**31 - 1), self.integers(1))
        return self.op("Squeeze", found, self.integers(1))

    def pixels(self, x: str) -> str:
        """uint8 → float16 in [-2, 2)."""
        levels = self.op("Cast", x, to=TensorProto.FLOAT16)
        scaled = self.op("Mul", levels, self.constant("pixel.scale", 2.0**-6))
        return self.op("Sub", scaled, self.constant("pixel.middle", 2.0))

    def outputs(self, parts: Sequence[str], columns: int, slices: Slices) -> None:
        """End the network with one tensor `outputs` (1, columns)."""
        self.split("Concat", parts, ["outputs"], axis=1)
        self.columns = columns
        self.slices = slices


Network = Callable[[Graph, int], None]


# What several networks share: camera images in, named heads out.


def cameras(g: Graph, road: str = "img", wide: str = "big_img") -> str:
    """Both camera stacks as one float16 tensor (1, 24, 128, 256)."""
    images = [g.input(name, *IMAGE, kind=TensorProto.UINT8) for name in (road, wide)]
    return g.pixels(g.concat(*images))


def hidden_state(g: Graph, x: str, size: int) -> str:
    """(1, size) → (1, 512) in (-1, 1), so that feeding it back stays bounded."""
    return g.op("Tanh", g.dense("hidden_state", x, size, HIDDEN))


def vision_outputs(g: Graph, x: str, size: int) -> None:
    """The 1576 columns of a vision model; its `pad` spans them all, as in the real file."""
    seen = sum(SEEN_WIDTHS.values())
    parts = [g.dense("seen", x, size, seen), hidden_state(g, x, size)]
    slices = spans({**SEEN_WIDTHS, "hidden_state": HIDDEN}) | {"pad": slice(0, None)}
    g.outputs(parts, seen + HIDDEN, slices)


def policy_outputs(g: Graph, x: str, size: int, widths: dict[str, int]) -> None:
    """A head for the plan, one for the other `widths`; the last two columns are `pad`."""
    others = sum(widths.values()) + 2
    parts = [g.dense("plan", x, size, 990), g.dense("others", x, size, others)]
    g.outputs(parts, 990 + others, spans({"plan": 990, **widths}) | {"pad": slice(-2, None)})


def attend(g: Graph, query: str, tokens: str, steps: int, size: int) -> str:
    """Two-head attention of a query (1, size) over tokens (1, steps, size); softmax would drop a key bias."""
    depth = size // 2
    q = g.reshape(g.dense("query", query, size, size), 1, 2, 1, depth)
    k = g.reshape(g.matmul("key", tokens, size, size), 1, steps, 2, depth)
    v = g.reshape(g.biased("value", g.matmul("value", tokens, size, size), size), 1, steps, 2, depth)
    scores = g.op("MatMul", q, g.op("Transpose", k, perm=[0, 2, 3, 1]))
    scaled = g.op("Mul", scores, g.constant("attention.scale", 2.0 ** -halvings(3 * depth)))
    mixed = g.op("MatMul", g.op("Softmax", scaled, axis=-1), g.op("Transpose", v, perm=[0, 2, 1, 3]))
    return g.reshape(mixed, 1, size)


# Vision networks: (1, 12, 128, 256) twice → (1, 1576).


def separable(g: Graph, name: str, x: str, size: int, kernel: int) -> str:
    """A depthwise then a pointwise convolution, added to what went in."""
    spread = g.conv(f"{name}.depth", x, size, 1, kernel, kernel, pad=kernel // 2, group=size)
    return g.op("Add", x, g.elu(g.conv(f"{name}.point", spread, size, size, 1, 1)))


def conv_vision(g: Graph, width: int) -> None:
    """Strided stem, two depthwise-separable blocks (3x3, 7x7), ELU."""
    x = g.elu(g.conv("stem", cameras(g), width, 24, 4, 4, stride=4))
    x = separable(g, "near", x, width, 3)
    x = g.elu(g.conv("shrink", x, 2 * width, width, 4, 4, stride=4))
    x = separable(g, "far", x, 2 * width, 7)
    x = g.elu(g.conv("fold", x, 4 * width, 2 * width, 2, 2, stride=2))
    x = g.elu(g.dense("features", g.op("Flatten", x), 4 * 8 * 4 * width, 8 * width))
    vision_outputs(g, x, 8 * width)


def mixer_block(g: Graph, x: str, size: int) -> str:
    """Depthwise 5x5, then layer norm and a GELU bottleneck over channels, added to what went in."""
    spread = g.conv("mix", x, size, 1, 5, 5, pad=2, group=size)
    rows = g.norm("mix.norm", g.op("Transpose", spread, perm=[0, 2, 3, 1]), size)
    wide = g.gelu(g.biased("mix.up", g.matmul("mix.up", rows, size, 2 * size), 2 * size))
    back = g.biased("mix.down", g.matmul("mix.down", wide, 2 * size, size), size)
    return g.op("Add", x, g.op("Transpose", back, perm=[0, 3, 1, 2]))


def excite(g: Graph, x: str, size: int) -> str:
    """Scale each channel by a gate computed from its mean (squeeze and excitation)."""
    mean = g.op("Flatten", g.op("ReduceMean", x, axes=[2, 3], keepdims=1))
    squeezed = g.gelu(g.dense("squeeze", mean, size, size // 2))
    gate = g.op("Sigmoid", g.dense("gate", squeezed, size // 2, size))
    return g.op("Mul", x, g.reshape(gate, 1, size, 1, 1))


def mixer_vision(g: Graph, width: int) -> None:
    """Patch stem, one mixer block with layer norm and GELU, squeeze and excitation."""
    x = g.conv("patch", cameras(g), 2 * width, 24, 8, 8, stride=8)
    x = mixer_block(g, x, 2 * width)
    x = g.gelu(g.conv("shrink", x, 4 * width, 2 * width, 4, 4, stride=4))
    x = excite(g, x, 4 * width)
    x = g.gelu(g.dense("features", g.op("Flatten", x), 4 * 8 * 4 * width, 8 * width))
    vision_outputs(g, x, 8 * width)


def grouped_vision(g: Graph, width: int) -> None:
    """Padded stem, maximum pooling, grouped convolutions, leaky rectifiers."""
    x = g.leaky(g.conv("stem", cameras(g), width, 24, 6, 6, stride=4, pad=1))
    x = g.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    x = g.leaky(g.conv("group", x, 4 * width, width // 2, 3, 3, stride=2, pad=1, group=2))
    x = g.leaky(g.conv("mix", x, 4 * width, 4 * width, 1, 1))
    x = g.leaky(g.conv("fold", x, 8 * width, 4 * width, 2, 2, stride=2))
    x = g.op("Tanh", g.dense("features", g.op("Flatten", x), 4 * 8 * 8 * width, 6 * width))
    vision_outputs(g, x, 6 * width)


# Policy networks: the features of 25 steps → plan and other heads.


def attention_policy(g: Graph, width: int) -> None:
    """The last step attends over all steps, then two dense layers: the real 1000 columns."""
    size = 8 * width
    desire = g.input("desire_pulse", 1, 25, 8)
    traffic = g.input("traffic_convention", 1, 2)
    features = g.input("features_buffer", 1, 25, HIDDEN)
    tokens = g.matmul("token", g.concat(features, desire, axis=2), HIDDEN + 8, size)
    tokens = g.biased("position", tokens, 25, size)
    query = g.last(tokens)
    mixed = g.op("Add", query, g.dense("mixed", attend(g, query, tokens, 25, size), size, size))
    x = g.elu(g.dense("decide", g.concat(mixed, traffic), size + 2, size))
    policy_outputs(g, x, size, {"desire_state": 8})


def gates(g: Graph, moment: str, state: str, step: int, size: int) -> str:
    """One step of a gated recurrent unit: moment (1, 3·size) and state (1, size) → state.

    Cho et al. 2014 with the reset gate applied after the product, and no recurrent bias.
    """
    recurrent = g.matmul("recurrent", state, size, 3 * size)
    names = [f"{kind}_{gate}_{step}" for kind in ("moment", "state") for gate in ("update", "reset", "new")]
    sizes = g.integers(size, size, size)
    g.split("Split", [moment, sizes], names[:3], axis=1)
    g.split("Split", [recurrent, sizes], names[3:], axis=1)
    update = g.op("Sigmoid", g.op("Add", names[0], names[3]))
    reset = g.op("Sigmoid", g.op("Add", names[1], names[4]))
    new = g.op("Tanh", g.op("Add", names[2], g.op("Mul", reset, names[5])))
    return g.op("Add", new, g.op("Mul", update, g.op("Sub", state, new)))


def gru_policy(g: Graph, width: int) -> None:
    """A gated recurrent unit over three moments of nine steps; the state starts from the traffic side."""
    size = 2 * width
    desire = g.input("desire_pulse", 1, 25, 8)
    traffic = g.input("traffic_convention", 1, 2)
    curvature = g.input("prev_desired_curv", 1, 25, 1)
    features = g.input("features_buffer", 1, 25, HIDDEN)
    tokens = g.matmul("token", g.concat(features, desire, curvature, axis=2), HIDDEN + 9, size)
    tokens = g.op("Tanh", g.biased("token", tokens, size))
    gated = g.conv("moment", g.op("Transpose", tokens, perm=[0, 2, 1]), 3 * size, size, 9, stride=8)
    rows = [f"moment_{step}" for step in range(3)]
    g.split("Split", [gated, g.integers(1, 1, 1)], rows, axis=2)
    state = g.op("Tanh", g.dense("start", traffic, 2, size))
    for step, row in enumerate(rows):
        state = gates(g, g.op("Flatten", row), state, step, size)
    x = g.op("Tanh", g.dense("decide", state, size, 8 * width))
    policy_outputs(g, x, 8 * width, {"desired_curvature": 2, "desire_state": 8})


def shared_inputs(g: Graph) -> tuple[str, str, str]:
    """What both policies of a multi-policy model take: steps (1, 25, 520), traffic and action time (1, 2)."""
    desire = g.input("desire_pulse", 1, 25, 8)
    traffic = g.input("traffic_convention", 1, 2)
    action = g.input("action_t", 1, 2)
    features = g.input("features_buffer", 1, 25, HIDDEN)
    return g.concat(features, desire, axis=2), traffic, action


def on_policy(g: Graph, width: int) -> None:
    """A convolution over time, then dense layers: plan, desire, curvature and action."""
    size = 4 * width
    steps, traffic, action = shared_inputs(g)
    x = g.matmul("token", steps, HIDDEN + 8, size)
    x = g.elu(g.conv("time", g.op("Transpose", x, perm=[0, 2, 1]), size, size, 5, stride=5))
    x = g.concat(g.op("Flatten", x), traffic, action)
    x = g.elu(g.dense("decide", x, 5 * size + 4, 2 * size))
    policy_outputs(g, x, 2 * size, {"desire_state": 8, "desired_curvature": 2, "action": 4})


def off_policy(g: Graph, width: int) -> None:
    """Each step is weighed by a softmax of its own score: plan and desire."""
    size = 6 * width
    steps, traffic, action = shared_inputs(g)
    tokens = g.silu(g.biased("token", g.matmul("token", steps, HIDDEN + 8, size), size))
    share = g.op("Softmax", g.matmul("score", tokens, size, 1), axis=1)
    pooled = g.reshape(g.op("MatMul", g.op("Transpose", share, perm=[0, 2, 1]), tokens), 1, size)
    x = g.silu(g.dense("decide", g.concat(pooled, traffic, action), size + 4, size))
    policy_outputs(g, x, size, {"desire_state": 8})


# Supercombos: images and history → everything, with the hidden state fed back by the runtime.


def supercombo_24(g: Graph, width: int) -> None:
    """One network at 5 Hz: 24 past features, the present one joined to them."""
    size = 8 * width
    x = g.elu(g.conv("stem", cameras(g), width, 24, 4, 4, stride=4))
    x = g.elu(g.conv("shrink", x, 2 * width, width, 4, 4, stride=4))
    x = separable(g, "far", x, 2 * width, 3)
    x = g.elu(g.conv("fold", x, 4 * width, 2 * width, 3, 3, stride=2, pad=1))
    x = g.elu(g.dense("features", g.op("Flatten", x), 4 * 8 * 4 * width, size))
    hidden = hidden_state(g, x, size)
    desire = g.input("desire_pulse", 1, 25, 8)
    traffic = g.input("traffic_convention", 1, 2)
    action = g.input("action_t", 1, 2)
    past = g.input("features_buffer", 1, 24, HIDDEN)
    steps = g.concat(past, g.reshape(hidden, 1, 1, HIDDEN))
    tokens = g.matmul("token", g.concat(steps, desire, axis=2), HIDDEN + 8, size)
    mixed = g.concat(x, attend(g, x, tokens, 25, size), traffic, action)
    decided = g.elu(g.dense("decide", mixed, 2 * size + 4, size))
    new_supercombo_outputs(g, decided, size, hidden)


def new_supercombo_outputs(g: Graph, x: str, size: int, hidden: str) -> None:
    widths = {**SEEN_WIDTHS, "plan": 990, "desire_state": 8, "desired_curvature": 2, "action": 4}
    ahead = sum(widths.values())
    parts = [g.dense("ahead", x, size, ahead), hidden, g.dense("pad", x, size, 2)]
    slices = spans({**widths, "hidden_state": HIDDEN}) | {"pad": slice(-2, None)}
    g.outputs(parts, ahead + HIDDEN + 2, slices)


def supercombo_99(g: Graph, width: int) -> None:
    """One network at 20 Hz: 99 past features, convolved over time in tens."""
    size = 8 * width
    images = cameras(g, "input_imgs", "big_input_imgs")
    x = g.silu(g.conv("stem", images, width, 24, 8, 8, stride=8))
    x = g.silu(g.conv("group", x, 4 * width, width // 2, 4, 4, stride=4, group=2))
    x = g.silu(g.dense("features", g.op("Flatten", x), 4 * 8 * 4 * width, size))
    hidden = hidden_state(g, x, size)
    desire = g.input("desire", 1, 100, 8)
    traffic = g.input("traffic_convention", 1, 2)
    lateral = g.input("lateral_control_params", 1, 2)
    curvature = g.input("prev_desired_curv", 1, 100, 1)
    past = g.input("features_buffer", 1, 99, HIDDEN)
    steps = g.concat(past, g.reshape(hidden, 1, 1, HIDDEN))
    tokens = g.matmul("token", g.concat(steps, desire, curvature, axis=2), HIDDEN + 9, 2 * width)
    tens = g.conv("time", g.op("Transpose", tokens, perm=[0, 2, 1]), 2 * width, 2 * width, 10, stride=10)
    mixed = g.concat(x, g.op("Flatten", g.silu(tens)), traffic, lateral)
    decided = g.silu(g.dense("decide", mixed, size + 20 * width + 4, size))
    old_supercombo_outputs(g, decided, size, hidden)


def old_supercombo_outputs(g: Graph, x: str, size: int, hidden: str) -> None:
    """The 6512 columns of the last old supercombos; hidden_state and pad count from the end, as there."""
    ahead = sum(OLD_WIDTHS.values())
    parts = [g.dense("ahead", x, size, ahead), hidden, g.dense("pad", x, size, 1)]
    slices = spans(OLD_WIDTHS) | {"hidden_state": slice(ahead, -1), "pad": slice(-1, None)}
    g.outputs(parts, ahead + HIDDEN + 1, slices)


# The others.


def dmonitoring(g: Graph, width: int) -> None:
    """The driver's camera (luma, 1440x960) and the calibration → both seats, (1, 553)."""
    size = 8 * width
    image = g.input("input_img", 1, MONITOR_HEIGHT * MONITOR_WIDTH, kind=TensorProto.UINT8)
    calibration = g.input("calib", 1, 3)
    x = g.pixels(g.reshape(image, 1, 1, MONITOR_HEIGHT, MONITOR_WIDTH))
    x = g.silu(g.conv("stem", x, width, 1, 8, 8, stride=8))
    x = g.silu(g.conv("shrink", x, 2 * width, width, 4, 4, stride=4))
    x = g.silu(g.conv("fold", x, 2 * width, 2 * width, 5, 5, stride=5))
    x = g.silu(g.dense("features", g.concat(g.op("Flatten", x), calibration), 6 * 9 * 2 * width + 3, size))
    seats = {f"{name}_{side}": n for side in ("lhd", "rhd") for name, n in DRIVER_WIDTHS.items()}
    widths = {**seats, "wheel_on_right": 1, "features": HIDDEN}
    faces = sum(widths.values()) - HIDDEN
    parts = [g.dense("faces", x, size, faces), hidden_state(g, x, size)]
    g.outputs(parts, faces + HIDDEN, spans(widths))


def generic_mlp(g: Graph, width: int) -> None:
    """Two dense layers, (1, 16) → (1, 8)."""
    x = g.op("Tanh", g.dense("first", g.input("input", 1, 16), 16, 4 * width))
    parts = [g.dense("left", x, 4 * width, 4), g.dense("right", x, 4 * width, 4)]
    g.outputs(parts, 8, spans({"left": 4, "right": 4}))


@dataclass(frozen=True)
class Architecture:
    """`networks` maps the role of each file (its name without the model's ID) to what fills its graph."""

    summary: str
    networks: dict[str, Network]


ARCHITECTURES = {
    "dmonitoring": Architecture(
        "driver monitoring: three strided convolutions with SiLU, both seats and 512 features",
        {"dmonitoring_model": dmonitoring},
    ),
    "generic-mlp": Architecture("a tiny two-layer model that is no driving model", {"model": generic_mlp}),
    "multi-policy": Architecture(
        "grouped-convolution vision, an on policy over time convolutions, an off policy over softmax pooling",
        {
            "driving_vision": grouped_vision,
            "driving_on_policy": on_policy,
            "driving_off_policy": off_policy,
        },
    ),
    "supercombo-24": Architecture(
        "one network at 5 Hz: separable convolutions, attention over 24 past features and the present one",
        {"driving_supercombo": supercombo_24},
    ),
    "supercombo-99": Architecture(
        "one old network at 20 Hz: grouped convolutions, 99 past features, open-ended output slices",
        {"driving_supercombo": supercombo_99},
    ),
    "vision-conv+attention": Architecture(
        "split: depthwise-separable ELU vision, attention policy",
        {"driving_vision": conv_vision, "driving_policy": attention_policy},
    ),
    "vision-mixer+gru": Architecture(
        "split: mixer vision with layer norm, GELU and squeeze-excitation, gated recurrent policy",
        {"driving_vision": mixer_vision, "driving_policy": gru_policy},
    ),
}
