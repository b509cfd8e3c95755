"""An ONNX model as a PyTorch module, so that torch.compile can be measured on the same model: one function an operator, for those of
the benchmarked models. `traced` is what to compile: sizes and axes are tensors in ONNX, which torch.compile would stop at."""
import numpy as np
import onnx
import torch
import torch.nn.functional as F
from onnx import numpy_helper

DTYPES = {1: torch.float32, 2: torch.uint8, 3: torch.int8, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float16, 11: torch.float64,
          16: torch.bfloat16}


class Unsupported(Exception):
    """No such operator here."""


def ints(t):
    return [int(v) for v in t.flatten().tolist()] if torch.is_tensor(t) else list(t)


def padded(x, pads, value=0.0):
    """ONNX's pads of the spatial axes; returns the tensor and what is left for a symmetric kernel argument."""
    half = len(pads) // 2
    if pads[:half] == pads[half:]:
        return x, list(pads[:half])
    torch_order = [p for axis in reversed(range(half)) for p in (pads[axis], pads[half + axis])]
    return F.pad(x, torch_order, value=value), [0] * half


def conv(x, w, b=None, *, strides=None, pads=None, dilations=None, group=1, **_):
    n = w.dim() - 2
    x, pad = padded(x, pads or [0] * 2 * n)
    return (F.conv1d, F.conv2d, F.conv3d)[n - 1](x, w, b, strides or [1] * n, pad, dilations or [1] * n, group)


def deconv(x, w, b=None, *, strides=None, pads=None, dilations=None, group=1, output_padding=None, **_):
    n = w.dim() - 2
    pads = pads or [0] * 2 * n
    if pads[:n] != pads[n:]:
        raise Unsupported("ConvTranspose with uneven pads")
    run = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[n - 1]
    return run(x, w, b, strides or [1] * n, pads[:n], output_padding or [0] * n, group, dilations or [1] * n)


def pool(largest):
    def run(x, *, kernel_shape, strides=None, pads=None, ceil_mode=0, count_include_pad=0, **_):
        n = len(kernel_shape)
        x, pad = padded(x, pads or [0] * 2 * n, -float("inf") if largest else 0.0)
        strides = strides or [1] * n
        if largest:
            return (F.max_pool1d, F.max_pool2d, F.max_pool3d)[n - 1](x, kernel_shape, strides, pad, 1, bool(ceil_mode))
        return (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[n - 1](x, kernel_shape, strides, pad, bool(ceil_mode), bool(count_include_pad))
    return run


def reshape(x, shape, *, allowzero=0):
    shape = ints(shape)
    return x.reshape([x.shape[k] if s == 0 and not allowzero else s for k, s in enumerate(shape)])


def slice_(x, starts, ends, axes=None, steps=None):
    starts, ends = ints(starts), ints(ends)
    axes = ints(axes) if axes is not None else list(range(len(starts)))
    steps = ints(steps) if steps is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps):
        index = torch.arange(x.shape[axis])[slice(start, None if end <= -(1 << 40) else end, None)] if step > 0 else None
        x = x[(slice(None),) * (axis % x.dim()) + (slice(start, end, step),)] if index is not None else torch.flip(x, [axis])
    return x


def resize(x, roi=None, scales=None, sizes=None, *, mode="nearest", coordinate_transformation_mode="half_pixel", **_):
    mode = {"nearest": "nearest", "linear": "bilinear", "cubic": "bicubic"}[mode]
    size = ints(sizes)[2:] if sizes is not None and len(sizes) else None
    factor = None if size else [float(s) for s in scales.tolist()[2:]]
    align = None if mode == "nearest" else coordinate_transformation_mode == "align_corners"
    return F.interpolate(x, size=size, scale_factor=factor, mode=mode, align_corners=align)


def gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    y = (a.T if transA else a) @ (b.T if transB else b)
    y = y * alpha if alpha != 1.0 else y
    return y if c is None else y + (c * beta if beta != 1.0 else c)


def split(x, sizes=None, *, axis=0, num_outputs=None):
    if sizes is None:
        return torch.chunk(x, num_outputs, axis)
    return torch.split(x, ints(sizes), axis)


def reduce_mean(x, axes=None, *, keepdims=1, **_):
    axes = ints(axes) if axes is not None else list(range(x.dim()))
    return x.mean(axes, bool(keepdims))


def gather(x, index, *, axis=0):
    if not torch.is_tensor(index) or index.dim() == 0:
        return x.select(axis, int(index))
    return torch.index_select(x, axis, index.flatten().to(x.device)).reshape(x.shape[:axis] + index.shape + x.shape[axis + 1:])


def gather_nd(x, index, *, batch_dims=0):
    if batch_dims:
        raise Unsupported("GatherND with batch_dims")
    return x[tuple(index.to(x.device).unbind(-1))]


def constant_of_shape(shape, *, value=None):
    one = torch.from_numpy(np.array(numpy_helper.to_array(value))) if value is not None else torch.zeros(1)
    return one.reshape([]).expand(ints(shape))


def cast(x, *, to, **_):
    return x.to(DTYPES[to])


def unsqueeze(x, axes):
    rank = x.dim() + len(ints(axes))
    for axis in sorted(a % rank for a in ints(axes)):
        x = x.unsqueeze(axis)
    return x


OPS = {
    "Conv": conv, "ConvTranspose": deconv, "MaxPool": pool(True), "AveragePool": pool(False), "Gemm": gemm, "MatMul": torch.matmul,
    "Relu": F.relu, "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Erf": torch.erf, "Exp": torch.exp, "Sqrt": torch.sqrt, "Neg": torch.neg,
    "HardSigmoid": lambda x, *, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1), "HardSwish": F.hardswish,
    "Gelu": lambda x, *, approximate="none": F.gelu(x, approximate=approximate),
    "Clip": lambda x, low=None, high=None: torch.clamp(x, None if low is None else low.item(), None if high is None else high.item()),
    "LeakyRelu": lambda x, *, alpha=0.01: F.leaky_relu(x, alpha),
    "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div, "Pow": torch.pow, "Where": torch.where, "IsNaN": torch.isnan,
    "GlobalAveragePool": lambda x: x.mean(list(range(2, x.dim())), True), "GlobalMaxPool": lambda x: x.amax(list(range(2, x.dim())), True),
    "Flatten": lambda x, *, axis=1: x.reshape(int(np.prod(x.shape[:axis])), -1), "Reshape": reshape, "Identity": lambda x: x, "Dropout": lambda x, *_, **k: x,
    "Transpose": lambda x, *, perm=None: x.permute(perm or list(reversed(range(x.dim())))), "Concat": lambda *xs, axis: torch.cat(xs, axis),
    "Slice": slice_, "Split": split, "Resize": resize, "Softmax": lambda x, *, axis=-1: torch.softmax(x, axis), "ReduceMean": reduce_mean,
    "LayerNormalization": lambda x, g, b=None, *, axis=-1, epsilon=1e-5, **_: F.layer_norm(x, x.shape[axis:], g, b, epsilon),
    "BatchNormalization": lambda x, g, b, m, v, *, epsilon=1e-5, **_: F.batch_norm(x, m, v, g, b, False, 0.0, epsilon),
    "GatherND": gather_nd, "GatherElements": lambda x, i, *, axis=0: torch.gather(x, axis, i), "ConstantOfShape": constant_of_shape,
    "Equal": torch.eq, "Less": torch.lt, "Greater": torch.gt, "LessOrEqual": torch.le, "GreaterOrEqual": torch.ge, "And": torch.logical_and,
    "Or": torch.logical_or, "Not": torch.logical_not, "BitwiseAnd": torch.bitwise_and, "Min": torch.minimum, "Max": torch.maximum,
    "Range": lambda a, b, c: torch.arange(a.item(), b.item(), c.item()), "Sin": torch.sin, "Cos": torch.cos, "Reciprocal": torch.reciprocal,
    "Gather": gather, "Cast": cast, "Unsqueeze": unsqueeze, "Squeeze": lambda x, axes=None: x.squeeze(ints(axes) if axes is not None else None),
    "Shape": lambda x, **_: torch.tensor(list(x.shape)), "Expand": lambda x, s: x.expand(torch.broadcast_shapes(x.shape, tuple(ints(s)))),
}


def attributes(node):
    out = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else list(v) if not isinstance(v, (int, float, onnx.TensorProto)) else v for k, v in out.items()}


class OnnxModule(torch.nn.Module):
    """Weights in `dtype` on `device`; inputs and outputs as the model has them."""

    def __init__(self, model, dtype, device):
        super().__init__()
        graph = model.graph
        self.outputs = [o.name for o in graph.output]
        constants = {t.name: torch.from_numpy(np.array(numpy_helper.to_array(t))) for t in graph.initializer}
        self.inputs = [i.name for i in graph.input if i.name not in constants]
        self.steps = []
        for node in graph.node:
            attrs = attributes(node)
            if node.op_type == "Constant":
                constants[node.output[0]] = torch.from_numpy(np.array(numpy_helper.to_array(attrs["value"])))
                continue
            if node.op_type not in OPS:
                raise Unsupported(node.op_type)
            attrs.pop("auto_pad", None)
            self.steps.append((OPS[node.op_type], list(node.input), list(node.output), attrs))
        self.constants = {}
        for name, t in constants.items():
            # Sizes, axes and the like stay on the host: they are arguments, not data. All data is on the device: a CUDA graph has no other.
            self.constants[name] = t.to(device, dtype) if t.is_floating_point() else t

    def forward(self, *inputs):
        values = dict(self.constants) | dict(zip(self.inputs, inputs)) | {"": None}
        for run, names, results, attrs in self.steps:
            y = run(*[values[n] for n in names], **attrs)
            for name, value in zip(results, y if isinstance(y, (tuple, list)) else [y]):
                values[name] = value
        return [values[n] for n in self.outputs]


def traced(module, inputs):
    """The module's tensor operations alone, as they are for these inputs: one graph, its weights as buffers."""
    from torch.fx.experimental.proxy_tensor import make_fx
    with torch.no_grad():
        made = make_fx(module)(*inputs)
    made.graph.eliminate_dead_code()
    made.recompile()
    return made
