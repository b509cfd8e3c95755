"""The operators of rules/ops/contrib*.yaml against ONNX Runtime's own kernels: each in all its forms, on random operands, some
of them constants. Last line: "N passed, N failed".

usage: run [GLOB]
  GLOB: only the operators that match.
"""
import fnmatch
import itertools
import pathlib
import re
import sys

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx import compose, helper, numpy_helper

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import harness  # noqa: E402
import tolerance  # noqa: E402

DOMAIN = "com.microsoft"
IN_ONNX = {"SimplifiedLayerNormalization"}  # which ONNX Runtime's optimizer writes into ONNX's domain
# Results in integers that are rounded from floats computed in another order may fall on the other side of a half.
ROUNDED = {"QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", "QLinearGlobalAveragePool",
           "QLinearAveragePool", "QGemm", "QLinearConcat", "QLinearWhere"}
COMPILED = {"RotaryEmbedding"}  # of which no layer is interpreted where sizes are known
rng = np.random.default_rng(7)
U8, I8 = np.uint8, np.int8


def f32(*shape, low=-1.0, high=1.0):
    return rng.uniform(low, high, shape).astype(np.float32)


def integers(kind, *shape, below=None):
    info = np.iinfo(kind)
    return rng.integers(info.min if below is None else 0, info.max + 1 if below is None else below, shape).astype(kind)


# Without VNNI, ONNX Runtime adds two products of u8 and i8 in 16 bits, which saturates (its quantizers' reduce_range is there for
# that): its results are those of the operators for weights of 7 bits only.
VNNI = "vnni" in pathlib.Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")


def weights_of(kind, *shape):
    return integers(kind, *shape) if VNNI or kind != I8 else rng.integers(-64, 64, shape).astype(kind)


def scalar(value, kind=np.float32):
    return np.array(value, kind)


class Fixed:
    """An operand that is a constant of the model."""

    def __init__(self, array):
        self.array = array


def cases():
    """(operator, attributes, operands (None: left out), names of the results that are wanted)."""
    a, b = f32(2, 3, 4), f32(2, 4, 5)
    yield "FusedMatMul", {}, [a, b], ["y"]
    yield "FusedMatMul", {"alpha": 0.5}, [a, Fixed(b)], ["y"]
    yield "FusedMatMul", {"transA": 1, "transB": 1, "alpha": 2.0}, [f32(2, 4, 3), f32(2, 5, 4)], ["y"]
    yield "FusedMatMul", {"transB": 1}, [f32(3, 4), f32(5, 4)], ["y"]
    yield "FusedMatMul", {"transBatchA": 1}, [f32(3, 2, 4), f32(2, 4, 5)], ["y"]
    yield "FusedMatMul", {"transBatchA": 1, "transA": 1, "transBatchB": 1, "transB": 1}, [f32(4, 2, 3), f32(5, 2, 4)], ["y"]

    for activation in ("Relu", "Sigmoid", "Tanh", "LeakyRelu"):
        yield "FusedGemm", {"activation": activation, "alpha": 0.5, "beta": 2.0, "transB": 1, "activation_alpha": 0.2}, \
            [f32(3, 4), Fixed(f32(5, 4)), Fixed(f32(5))], ["y"]
    image, filters = f32(1, 3, 8, 8), Fixed(f32(4, 3, 3, 3))
    yield "FusedConv", {"activation": "Relu", "pads": [1, 1, 1, 1]}, [image, filters, Fixed(f32(4))], ["y"]
    yield "FusedConv", {"activation": "Relu"}, [image, filters, Fixed(f32(4)), f32(1, 4, 6, 6)], ["y"]
    yield "FusedConv", {"activation": "LeakyRelu", "activation_params": [0.3], "strides": [2, 2]}, [image, filters], ["y"]
    yield "FusedConv", {"activation": "Clip", "activation_params": [-0.5, 0.5], "kernel_shape": [3, 3]}, [image, filters], ["y"]
    yield "FusedConv", {"activation": "HardSigmoid", "activation_params": [0.2, 0.5], "dilations": [2, 2]}, [image, filters], ["y"]

    x, skip, gamma, beta, bias = f32(2, 3, 8), f32(2, 3, 8), f32(8), f32(8), f32(8)
    yield "SkipLayerNormalization", {}, [x, skip, Fixed(gamma)], ["y"]
    yield "SkipLayerNormalization", {"epsilon": 1e-5}, [x, skip, Fixed(gamma), Fixed(beta)], ["y"]
    yield "SkipLayerNormalization", {}, [x, skip, Fixed(gamma), Fixed(beta), Fixed(bias)], ["y", None, None, "sum"]
    yield "SkipLayerNormalization", {}, [x, f32(3, 8), gamma, None, bias], ["y"]
    yield "SkipSimplifiedLayerNormalization", {}, [x, skip, Fixed(gamma)], ["y"]
    yield "SimplifiedLayerNormalization", {"axis": -1, "epsilon": 1e-4}, [x, Fixed(gamma)], ["y"]
    yield "SkipSimplifiedLayerNormalization", {"epsilon": 1e-3}, [x, skip, Fixed(gamma), Fixed(bias)], ["y", None, None, "sum"]

    for other in (f32(1, 3, 8), f32(3, 8)):
        yield "SkipSimplifiedLayerNormalization", {}, [x, other, Fixed(gamma)], ["y", None, None, "sum"]
        yield "SkipLayerNormalization", {}, [x, other, Fixed(gamma), Fixed(beta), Fixed(bias)], ["y", None, None, "sum"]
    yield "SkipSimplifiedLayerNormalization", {}, [f32(4, 8), f32(4, 8), Fixed(gamma)], ["y"]
    yield "SkipSimplifiedLayerNormalization", {}, [x, skip, gamma], ["y", None, "inv_std"]
    half = [v.astype(np.float16) for v in (x, skip, gamma)]
    yield "SkipSimplifiedLayerNormalization", {}, half, ["y", None, None, "sum"]
    yield "SimplifiedLayerNormalization", {}, [half[0], half[2]], ["y"]
    yield "SimplifiedLayerNormalization", {"axis": 2}, [x, Fixed(gamma)], ["y", "inv_std"]

    for op in ("Gelu", "FastGelu", "QuickGelu"):
        yield op, {}, [3 * x], ["y"]
    yield "QuickGelu", {"alpha": 1.3}, [3 * x], ["y"]
    yield "BiasGelu", {}, [3 * x, Fixed(bias)], ["y"]
    yield "FastGelu", {}, [3 * x, Fixed(bias)], ["y"]

    ids, segments = integers(np.int32, 2, 3, below=10), integers(np.int32, 2, 3, below=2)
    words, places, parts = Fixed(f32(10, 8)), Fixed(f32(6, 8)), Fixed(f32(2, 8))
    mask = np.array([[1, 1, 0], [1, 1, 1]], np.int32)
    yield "EmbedLayerNormalization", {}, [ids, segments, words, places, parts, Fixed(gamma), Fixed(beta)], ["y", "mask_index"]
    yield "EmbedLayerNormalization", {}, [ids, segments, words, places, parts, Fixed(gamma), Fixed(beta), mask], ["y", "mask_index"]
    yield "EmbedLayerNormalization", {"epsilon": 1e-5}, [ids, None, words, places, None, Fixed(gamma), Fixed(beta), mask], ["y", "mask_index", "sum"]
    yield "EmbedLayerNormalization", {}, [ids, segments, words, places, parts, Fixed(gamma), Fixed(beta), None,
                                          integers(np.int32, 2, 3, below=6)], ["y", "mask_index"]

    x, weights, bias = f32(2, 3, 8), Fixed(f32(8, 24)), Fixed(f32(24))
    for causal in (0, 1):
        heads = {"num_heads": 2, "unidirectional": causal}
        yield "Attention", heads, [x, weights, bias], ["y"]
        yield "Attention", heads, [x, weights, bias, np.array([2, 3], np.int32)], ["y"]
        yield "Attention", heads, [x, weights, bias, np.array([3, 2, 1, 0], np.int32)], ["y"]
        yield "Attention", heads, [x, weights, bias, mask], ["y"]
        yield "Attention", heads, [x, weights, bias, np.tril(np.ones((2, 3, 3), np.int32))], ["y"]
        yield "Attention", heads, [x, weights, bias, None, f32(2, 2, 2, 4, 4)], ["y", "present"]
        yield "Attention", heads, [x, weights, bias, integers(np.int32, 2, 7, below=2) | np.eye(1, 7, dtype=np.int32), f32(2, 2, 2, 4, 4)], ["y", "present"]
        yield "Attention", heads, [x, weights, bias, mask, None, f32(2, 2, 3, 3)], ["y"]
    yield "Attention", {"num_heads": 2, "scale": 0.3, "mask_filter_value": -50.0}, [x, weights, bias, mask], ["y"]
    yield "Attention", {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 4]}, [x, Fixed(f32(8, 20)), Fixed(f32(20))], ["y"]

    for kind in (U8, I8):
        q = [Fixed(integers(kind, *size)) for size in ((10, 8), (6, 8), (2, 8), (8,), (8,))]
        scale, zero = Fixed(scalar(0.02)), Fixed(scalar(7, kind))
        op = "QEmbedLayerNormalization"
        yield op, {}, [ids, segments, *q, None, *[scale] * 5, *[zero] * 5], ["y", "mask_index"]
        yield op, {"epsilon": 1e-4}, [ids, None, q[0], q[1], None, q[3], q[4], mask, scale, scale, None, scale, scale, zero, zero, None, zero, zero], ["y", "mask_index"]
    for kind, causal in itertools.product((U8, I8), (0, 1)):
        heads = {"num_heads": 2, "unidirectional": causal}
        quantized = [integers(U8, 2, 3, 8), Fixed(weights_of(kind, 8, 48)), Fixed(f32(48)), Fixed(scalar(0.01)), Fixed(scalar(0.02))]
        zeros = [Fixed(scalar(120, U8)), Fixed(scalar(5, kind))]
        yield "QAttention", heads, quantized, ["y"]
        for words in (None, np.array([2, 3], np.int32), mask):
            yield "QAttention", heads, [*quantized, words, *zeros], ["y"]
        yield "QAttention", heads, [*quantized[:4], Fixed(f32(48, low=0.01, high=0.02)), None, zeros[0], Fixed(integers(kind, 48, below=9))], ["y"]
        yield "QAttention", heads, [*quantized, None, *zeros, f32(2, 2, 2, 4, 8)], ["y", "present"]

    query, key, value, bias = f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8), Fixed(f32(24))
    heads = {"num_heads": 2}
    yield "MultiHeadAttention", heads, [query, key, value], ["y"]
    yield "MultiHeadAttention", heads, [query, key, value, bias], ["y"]
    yield "MultiHeadAttention", heads, [query, key, f32(2, 5, 6), Fixed(f32(22))], ["y"]
    yield "MultiHeadAttention", heads, [query, key, value, bias, integers(np.int32, 2, 5, below=2) | np.eye(1, 5, dtype=np.int32)], ["y"]
    yield "MultiHeadAttention", heads, [query, key, value, bias, None, f32(1, 2, 3, 5)], ["y"]
    yield "MultiHeadAttention", {**heads, "scale": 0.25}, [query, f32(2, 2, 5, 4), f32(2, 2, 5, 4)], ["y"]
    same = [query, f32(2, 3, 8), f32(2, 3, 8)]
    yield "MultiHeadAttention", {**heads, "unidirectional": 1}, [*same, bias], ["y"]
    yield "MultiHeadAttention", heads, [*same, bias, None, None, f32(2, 2, 4, 4), f32(2, 2, 4, 4)], ["y", "present_key", "present_value"]
    yield "MultiHeadAttention", {**heads, "unidirectional": 1}, [*same, bias, None, None, f32(2, 2, 4, 4), f32(2, 2, 4, 4)], ["y", "present_key", "present_value"]

    yield from renamed()
    yield from grouped_queries()

    cos, sin = Fixed(f32(16, 2)), Fixed(f32(16, 2))
    half = [Fixed(o.array.astype(np.float16)) for o in (cos, sin)]
    for interleaved, positions in itertools.product((0, 1), (integers(np.int64, 2, 3, below=14), np.array([5], np.int64))):
        plain = {"interleaved": interleaved}
        yield "RotaryEmbedding", plain, [f32(2, 3, 8), positions, cos, sin], ["y"]
        yield "RotaryEmbedding", plain, [f32(2, 2, 3, 4), positions, cos, sin], ["y"]
        yield "RotaryEmbedding", plain, [f32(2, 2, 3, 4), positions, f32(16, 2), f32(16, 2)], ["y"]
        yield "RotaryEmbedding", plain, [f32(2, 3, 8).astype(np.float16), positions, *half], ["y"]
        yield "RotaryEmbedding", {**plain, "num_heads": 2}, [f32(2, 3, 8), positions, cos, sin], ["y"]
        partly = {**plain, "num_heads": 2, "rotary_embedding_dim": 4}
        yield "RotaryEmbedding", partly, [f32(2, 3, 16), positions, cos, sin], ["y"]
        yield "RotaryEmbedding", partly, [f32(2, 2, 3, 8), positions, cos, sin], ["y"]
        yield "RotaryEmbedding", {**plain, "scale": 0.5}, [f32(2, 3, 8), positions, cos, sin], ["y"]
    packed = [f32(1, 20, 8), integers(np.int64, 1, 20, below=16), cos, sin]  # more steps than the caches have rows
    yield "RotaryEmbedding", {"is_packed_batching": 1}, packed, ["y"]

    yield "QuantizeLinear", {}, [f32(2, 3), Fixed(scalar(0.02)), Fixed(scalar(120, U8))], ["y"]
    yield "QuantizeLinear", {"axis": 0}, [f32(2, 3), Fixed(f32(2, low=0.01, high=0.02)), Fixed(integers(np.uint16, 2))], ["y"]
    yield "DequantizeLinear", {}, [integers(U8, 2, 3), Fixed(scalar(0.02)), Fixed(scalar(120, U8))], ["y"]
    yield "DequantizeLinear", {}, [integers(np.int16, 2, 3), Fixed(f32(3)), Fixed(integers(np.int16, 3))], ["y"]

    yield "QuantizeLinear", {}, [f32(2, 4), Fixed(scalar(0.02)), Fixed(scalar(-5, np.int16))], ["y"]
    yield "QuantizeLinear", {}, [f32(2, 4), Fixed(scalar(0.02))], ["y"]
    yield "DequantizeLinear", {}, [integers(np.int32, 2, 3, below=1000), Fixed(scalar(0.02))], ["y"]
    yield "DequantizeLinear", {}, [Fixed(integers(U8, 2, 4, below=8).astype(ml_dtypes.int4)), Fixed(scalar(0.02)), Fixed(scalar(1, ml_dtypes.int4))], ["y"]

    a, scale, zero = integers(U8, 4, 8), scalar(0.01), scalar(128, U8)
    for kind in (U8, I8):
        b = Fixed(weights_of(kind, 8, 5))
        yield "MatMulIntegerToFloat", {}, [a, b, scale, Fixed(scalar(0.02)), zero, Fixed(scalar(3, kind))], ["y"]
        yield "MatMulIntegerToFloat", {}, [a, b, scale, Fixed(f32(5, low=0.01, high=0.02)), zero, Fixed(integers(kind, 5)), Fixed(f32(5))], ["y"]
        yield "DynamicQuantizeMatMul", {}, [f32(3, 8), b, Fixed(scalar(0.02)), Fixed(scalar(3, kind))], ["y"]
        yield "DynamicQuantizeMatMul", {}, [f32(2, 3, 8), b, Fixed(f32(5, low=0.01, high=0.02)), None, Fixed(f32(5))], ["y"]
        yield "QGemm", {}, [a, scale, zero, b, Fixed(scalar(0.02)), Fixed(scalar(3, kind)), Fixed(integers(np.int32, 5, below=1000))], ["y"]
        yield "QGemm", {"transB": 1, "alpha": 0.5}, [a, scale, zero, Fixed(weights_of(kind, 5, 8)), Fixed(scalar(0.02)), Fixed(scalar(3, kind)), None,
                                                     Fixed(scalar(0.1)), Fixed(scalar(100, U8))], ["y"]

    for kind, middle in ((U8, 120), (I8, -7)):
        x, z = integers(kind, 2, 4, 6), integers(kind, 2, 4, 6)
        q = [Fixed(scalar(0.02)), Fixed(scalar(middle, kind))]
        out = [Fixed(scalar(0.031)), Fixed(scalar(middle + 5, kind))]
        for op in ("QLinearAdd", "QLinearMul"):
            yield op, {}, [x, *q, z, *q, *out], ["y"]
            yield op, {}, [x, *q, Fixed(integers(kind, 6)), *q, *out], ["y"]
        yield "QLinearConcat", {"axis": 1}, [*out, x, *q, z, *q, integers(kind, 2, 1, 6), Fixed(scalar(0.01)), Fixed(scalar(1, kind))], ["y"]
        yield "QLinearSigmoid", {}, [x, *q, Fixed(scalar(1 / 256)), Fixed(scalar(0 if kind == U8 else -128, kind))], ["y"]
        yield "QLinearLeakyRelu", {"alpha": 0.2}, [x, *q, *out], ["y"]
        yield "QLinearSoftmax", {"axis": -1, "opset": 13}, [x, *q, Fixed(scalar(1 / 256)), Fixed(scalar(0 if kind == U8 else -128, kind))], ["y"]
        image = integers(kind, 1, 3, 6, 6)
        yield "QLinearGlobalAveragePool", {}, [image, *q, *out], ["y"]
        rows = integers(kind, 1, 6, 6, 4)  # with the channels in the last place, or the second
        turned = np.ascontiguousarray(rows.transpose(0, 3, 1, 2))
        for last, pixels in ((0, turned), (1, rows)):
            yield "QLinearConv", {"channels_last": last, "pads": [1, 1, 1, 1]}, \
                [pixels, *q, Fixed(weights_of(I8, 5, 4, 3, 3)), Fixed(f32(5, low=0.01, high=0.02)), Fixed(np.zeros(5, I8)), *out, Fixed(integers(np.int32, 5, below=1000))], ["y"]
            yield "QLinearConv", {"channels_last": last, "group": 4, "kernel_shape": [3, 3], "strides": [2, 2]}, \
                [pixels, *q, Fixed(weights_of(I8, 4, 1, 3, 3)), Fixed(scalar(0.01)), Fixed(scalar(0, I8)), *out], ["y"]
            yield "QLinearAveragePool", {"channels_last": last, "kernel_shape": [2, 2], "strides": [2, 2]}, [pixels, *q, *out], ["y"]
            yield "QLinearGlobalAveragePool", {"channels_last": last}, [pixels, *q, *out], ["y"]
        yield "NhwcMaxPool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [rows], ["y"]
        yield "NhwcMaxPool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 2]}, [rows], ["y"]
        yield "NhwcMaxPool", {"kernel_shape": [3]}, [integers(kind, 1, 6, 4)], ["y"]
        yield "QLinearAveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, [image, *q, *out], ["y"]
        yield "QLinearWhere", {}, [integers(U8, 4, 6, below=2).astype(bool), x, *q, z, *q, *out], ["y"]

    for bits, (depth, block) in itertools.product((2, 4, 8), ((32, 16), (48, 32), (80, 32), (128, 128), (200, 64))):
        blocks = -(-depth // block)
        shape = {"K": depth, "N": 6, "bits": bits, "block_size": block}
        b, scales = Fixed(integers(U8, 6, blocks, block * bits // 8)), Fixed(f32(6 * blocks))
        packed = Fixed(integers(U8, 6 * -(-blocks * bits // 8)))
        yield "MatMulNBits", shape, [f32(3, depth), b, scales], ["y"]
        yield "MatMulNBits", shape, [f32(2, 3, depth), b, scales, packed], ["y"]
        yield "MatMulNBits", {**shape, "accuracy_level": 1}, [f32(3, depth), b, Fixed(f32(6, blocks)), packed, None, Fixed(f32(6))], ["y"]
        if bits < 8:  # ONNX Runtime has no zeros between numbers of 8 bits
            yield "MatMulNBits", shape, [f32(3, depth), b, scales, Fixed(f32(6, blocks, low=0, high=2**bits))], ["y"]
        if bits == 4:  # with a block for each number it takes 8 for every packed zero, and of 2 bits
            order = Fixed(integers(np.int32, depth, below=blocks))
            yield "MatMulNBits", shape, [f32(3, depth), b, scales, None, order], ["y"]
            yield "MatMulNBits", shape, [f32(3, depth), b, scales, Fixed(f32(6, blocks, low=0, high=16)), order], ["y"]
    for activation, limited, k, rows in (("relu", False, 1, (3,)), ("gelu", False, 2, (2, 3)), ("silu", False, 3, (1,)), ("identity", False, 4, (3,)),
                                         ("swiglu", False, 2, (3,)), ("swiglu", True, 2, (2, 3))):
        wide = 2 if activation == "swiglu" else 1
        shape = {"k": k, "activation_type": activation, "swiglu_fusion": wide - 1, **({"swiglu_limit": 0.5, "activation_alpha": 1.7, "activation_beta": 1.0} if limited else {})}
        many = int(np.prod(rows))
        operands = [f32(*rows, 16), f32(many, 4), Fixed(f32(4, 32 * wide, 16)), Fixed(f32(4, 32 * wide)), Fixed(f32(4, 16, 32)), Fixed(f32(4, 16))]
        yield "MoE", shape, operands, ["y"]
        yield "MoE", {**shape, "normalize_routing_weights": 1}, [*operands[:3], None, operands[4]], ["y"]
        for bits, block in ((4, 0), (8, 0), (4, 16), (2, 16)):  # of 8 bits in blocks ONNX Runtime rounds the activations
            depths, quantized = (16, 32), []
            for out, depth in zip((32 * wide, 16), depths):
                each = (depth // block,) if block else ()
                packed = (4, out, -(-depth // block * bits // 8)) if block else (4, -(-out * bits // 8))
                quantized.append([Fixed(integers(U8, 4, out, depth * bits // 8)), Fixed(f32(4, out, *each, low=0.01, high=0.05)), Fixed(integers(U8, *packed))])
            (q1, s1, z1), (q2, s2, z2) = quantized
            mixed = {**shape, "expert_weight_bits": bits, **({"block_size": block} if block else {})}
            yield "QMoE", mixed, [*operands[:2], q1, s1, operands[3], q2, s2, operands[5]], ["y"]
            yield "QMoE", {**mixed, "normalize_routing_weights": 1}, [*operands[:2], q1, s1, None, q2, s2, None, None, None, None, z1, z2, None, f32(many, 4, low=0.1)], ["y"]
    for kind, (depth, width, block) in itertools.product((0, 1), ((32, 8, 16), (40, 3, 16), (30, 3, 32), (25, 3, 16))):
        yield "MatMulBnb4", {"K": depth, "N": width, "block_size": block, "quant_type": kind}, \
            [f32(3, depth), Fixed(integers(U8, -(-width * depth // 2))), Fixed(f32(-(-width * depth // block)))], ["y"]
    for bits, zeros, block, width in itertools.product((2, 4, 8), (False, True), (16, 32), (64, 96)):
        blocks = width // block
        table, scales = Fixed(integers(U8, 7, width * bits // 8)), Fixed(f32(7, blocks))
        more = [Fixed(integers(U8, 7, -(-blocks * bits // 8)))] if zeros else []
        shape = {"bits": bits, "block_size": block, "gather_axis": 0, "quantize_axis": 1}
        yield "GatherBlockQuantized", shape, [table, integers(np.int64, 2, 3, below=7), scales, *more], ["y"]
    for kind, zeros in itertools.product((ml_dtypes.int4, ml_dtypes.uint4), (False, True)):
        numbers = [Fixed(integers(U8, *shape, below=8).astype(kind)) for shape in ((7, 32), (7, 2), (32, 7), (2, 7))]
        at = integers(np.int32, 2, 3, below=7)
        yield "GatherBlockQuantized", {"block_size": 16}, [numbers[0], at, Fixed(f32(7, 2)), *([numbers[1]] if zeros else [])], ["y"]
        yield "GatherBlockQuantized", {"block_size": 16, "gather_axis": 1, "quantize_axis": 0}, \
            [numbers[2], at, Fixed(f32(2, 7)), *([numbers[3]] if zeros else [])], ["y"]
    hidden, length = 4, 3
    for directions, form in ((1, "forward"), (1, "reverse"), (2, "bidirectional")):
        packed = [Fixed(weights_of(I8, directions, 5, 4 * hidden)), Fixed(weights_of(I8, directions, hidden, 4 * hidden))]
        for wide in ((directions,), (directions, 4 * hidden)):
            scales = [Fixed(f32(*wide, low=0.005, high=0.01)), Fixed(np.zeros(wide, I8))]
            yield "DynamicQuantizeLSTM", {"hidden_size": hidden, "direction": form}, \
                [f32(length, 1, 5), *packed, Fixed(f32(directions, 8 * hidden)), None, None, None, None, *scales, *scales], ["y", "h", "c"]
    yield "DynamicQuantizeLSTM", {"hidden_size": hidden}, \
        [f32(length, 1, 5), Fixed(integers(U8, 1, 5, 4 * hidden)), Fixed(integers(U8, 1, hidden, 4 * hidden)), None, None, f32(1, 1, hidden),
         f32(1, 1, hidden), None, *[Fixed(scalar([0.01])), Fixed(scalar([120], U8))] * 2], ["y", "h", "c"]


def renamed():
    """What ONNX has under another name, and small ones that it has not."""
    x = f32(2, 3, 4)
    yield "TransposeMatMul", {"transA": 1, "alpha": 0.5}, [f32(2, 4, 3), f32(2, 4, 5)], ["y"]
    yield "TransposeMatMul", {"transB": 1}, [f32(3, 4), Fixed(f32(5, 4))], ["y"]
    yield "Trilu", {}, [f32(2, 4, 5)], ["y"]
    yield "Trilu", {"upper": 0}, [f32(2, 4, 5), scalar(1, np.int64)], ["y"]
    for axis in (0, 2, -1, -2):
        yield "ExpandDims", {}, [x, Fixed(scalar(axis, np.int32))], ["y"]
    yield "Range", {}, [scalar(1), scalar(7), scalar(1.5)], ["y"]
    yield "Range", {}, [scalar([1], np.int64), scalar([7], np.int64)], ["y"]
    yield "Range", {}, [Fixed(scalar([1], np.int32)), Fixed(scalar([7], np.int32)), Fixed(scalar([2], np.int32))], ["y"]
    yield "GatherND", {}, [x, integers(np.int32, 2, 2, below=2)], ["y"]
    yield "GatherND", {}, [x, integers(np.int64, 3, 1, below=2)], ["y"]
    yield "Pad", {}, [f32(2, 3), Fixed(np.array([0, 1, 2, 1]))], ["y"]
    yield "Pad", {}, [f32(2, 3), Fixed(np.array([0, -1, 2, 1])), scalar([3.0])], ["y"]
    yield "Pad", {"mode": "reflect"}, [f32(2, 3), Fixed(np.array([[0, 1, 0, 2]]))], ["y"]
    yield "Pad", {"mode": "edge"}, [f32(2, 3), np.array([0, 1, 1, 2])], ["y"]
    yield "Unique", {}, [integers(np.int64, 9, below=4).astype(np.float32)], ["y", "index", "counts"]
    for mode, padding, corners in itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"), (0, 1)):
        yield "GridSample", {"mode": mode, "padding_mode": padding, "align_corners": corners}, [f32(1, 2, 4, 5), f32(1, 3, 3, 2, low=-1.3, high=1.3)], ["y"]
    for metric, kind in itertools.product(("sqeuclidean", "euclidean"), (np.float32, np.float64)):
        yield "CDist", {"metric": metric}, [f32(4, 3).astype(kind), f32(5, 3).astype(kind)], ["y"]
    for length, size in itertools.product((1, 2, 3, 9), (1, 2, 3)):
        yield "NGramRepeatBlock", {"ngram_size": size}, [integers(np.int64, 3, length, below=3), f32(3, 5)], ["y"]
    for activation in ("silu", "swish", "sigmoid"):
        yield "GatedRMSNorm", {"activation": activation}, [f32(2, 3, 8), Fixed(f32(8)), f32(2, 3, 8)], ["y"]
        yield "GatedRMSNorm", {"activation": activation, "epsilon": 1e-3}, [f32(2, 3, 8), Fixed(f32(4)), f32(2, 3, 8)], ["y"]
    yield "ScaledSiLU", {"alpha": 0.7}, [f32(2, 3)], ["y"]
    yield "ScaledSiLU", {}, [f32(2, 3), scalar(1.5)], ["y"]


def grouped_queries():
    """GroupQueryAttention: prompts, single steps and more steps behind a past, with and without what may be added to each."""
    kv, size, op = 2, 16, "GroupQueryAttention"
    all_three = ["y", "present_key", "present_value"]

    def operands(batch, length, lengths, total, past=None, heads=4, size=size, packed=False):
        """`lengths` of the rows, with the new ones; past: how many steps there is room for, or None."""
        if packed:
            first = [f32(batch, length, (heads + 2 * kv) * size), None, None]
        else:
            first = [f32(batch, length, heads * size), f32(batch, length, kv * size), f32(batch, length, kv * size)]
        cache = [None, None] if past is None else [f32(batch, kv, past, size), f32(batch, kv, past, size)]
        return [*first, *cache, np.array(lengths, np.int32) - 1, np.array([total], np.int32)]

    prompt, step = (2, 5, [5, 5], 5), (2, 1, [4, 7], 7, 6)
    several = (1, 3, [9], 9, 6)  # of one row only
    plain = {"num_heads": 4, "kv_num_heads": kv}
    for heads in (2, 4, 6):
        many = {"num_heads": heads, "kv_num_heads": kv}
        yield op, many, operands(*prompt, heads=heads), all_three
        yield op, many, operands(*prompt, heads=heads, packed=True), all_three
        yield op, many, operands(*step, heads=heads), all_three
        yield op, many, operands(*step, heads=heads, packed=True), all_three
    yield op, plain, operands(*prompt), ["y"]
    yield op, plain, operands(2, 5, [3, 5], 5), all_three  # a row that ends before the other
    yield op, plain, operands(3, 6, [1, 6, 2], 6), all_three
    yield op, plain, operands(2, 5, [3, 5], 5, 0), all_three  # a past of length 0
    yield op, plain, operands(2, 5, [3, 5], 5, 12), all_three  # a past that has room for 12
    yield op, plain, operands(2, 1, [7, 7], 7, 6), all_three
    yield op, plain, operands(2, 1, [1, 7], 7, 6), all_three
    yield op, plain, operands(2, 1, [4, 7], 7, 12), all_three
    yield op, plain, operands(2, 1, [1, 1], 1, 6), all_three
    yield op, plain, operands(2, 1, [1, 1], 1), all_three
    yield op, plain, operands(*several), all_three
    yield op, plain, operands(1, 3, [9], 9, 12), all_three
    for length, lengths, room in ((1, [6], 6), (3, [6], 6), (2, [5], 8), (4, [4], 6)):  # keys that are all past ones
        shared = operands(1, length, lengths, lengths[0], room)
        shared[1:3] = f32(1, 0, kv * size), f32(1, 0, kv * size)
        yield op, plain, shared, all_three
    fixed = operands(*step)
    fixed[5:7] = Fixed(fixed[5]), Fixed(fixed[6].reshape(()))  # sizes that are known before the run
    yield op, plain, fixed, all_three

    caches = Fixed(f32(16, size // 2)), Fixed(f32(16, size // 2))
    for interleaved in (0, 1):
        turned = {**plain, "do_rotary": 1, "rotary_interleaved": interleaved}
        for form in (prompt, (2, 5, [3, 5], 5, 0), step, several, (1, 3, [9], 9, 12)):
            yield op, turned, [*operands(*form), *caches], all_three
        yield op, turned, [*operands(*prompt, packed=True), *caches], all_three
        yield op, turned, [*operands(*step, packed=True), *caches], all_three
        yield op, turned, [*operands(*prompt, size=32), *caches], all_three  # half of each head is turned
        yield op, turned, [*operands(*step, size=32), *caches], all_three
        yield op, turned, [*operands(*prompt), *caches, np.array([[2, 3, 4, 5, 6], [0, 1, 2, 3, 4]], np.int64)], all_three
        yield op, turned, [*operands(2, 5, [5, 5], 5, 0), *caches, np.array([[2, 3, 4, 5, 6], [0, 1, 2, 3, 4]], np.int64)], all_three
        yield op, turned, [*operands(*step), *caches, np.array([[9], [2]], np.int64)], all_three
        yield op, turned, [*operands(*several), *caches, np.array([[9, 2, 5]], np.int64)], all_three

    none = [None, None, None]
    for form in (prompt, step, several, (2, 1, [4, 7], 7, 12)):
        batch, length, _, total, *_ = form
        biases = [f32(batch, 4, length, total), f32(1, 4, length, total), f32(batch, 1, length, total), f32(1, 1, length, total)]
        for window in (1, 2, 3, 20):
            yield op, {**plain, "local_window_size": window}, operands(*form), all_three
        yield op, {**plain, "softcap": 0.7}, operands(*form), all_three
        yield op, {**plain, "scale": 0.4}, operands(*form), all_three
        yield op, {**plain, "causal": 0}, operands(*form), all_three
        for bias in biases:
            yield op, plain, [*operands(*form), *none, bias], all_three
        yield op, {"num_heads": 2, "kv_num_heads": kv}, [*operands(*form, heads=2), *none, f32(1, 1, length, total)], all_three
        yield op, {**plain, "softcap": 0.7, "local_window_size": 2, "scale": 0.9}, [*operands(*form), *none, biases[0]], all_three
        yield op, {**plain, "smooth_softmax": 1}, operands(*form), all_three
        yield op, plain, [*operands(*form), *none, None, f32(4, low=-3, high=3)], all_three
        yield op, {**plain, "softcap": 0.7, "local_window_size": 2}, [*operands(*form), *none, biases[2], f32(4, low=-3, high=3)], all_three
        yield op, {**plain, "smooth_softmax": 1}, [*operands(*form), *none, biases[3]], all_three
        yield op, {**plain, "do_rotary": 1, "local_window_size": 3}, [*operands(*form), *caches, None, None, f32(4)], all_three
    for form in (prompt, step):
        half = [o.astype(np.float16) if o is not None and o.dtype == np.float32 else o for o in operands(*form)]
        yield op, plain, half, all_three


def refused():
    """(operator, attributes, operands, results, what the message says): calls that must be refused, with their reason."""
    op, plain = "GroupQueryAttention", {"num_heads": 4, "kv_num_heads": 2}
    query, key, lengths, total = f32(1, 3, 64), f32(1, 3, 32), np.array([2], np.int32), np.array([3], np.int32)
    operands = [query, key, key, None, None, lengths, total]
    yield op, {**plain, "qk_output": 1}, operands, ["y", "k", "v", "qk"], "qk_output"
    yield op, {**plain, "k_quant_type": "PER_TENSOR", "v_quant_type": "PER_TENSOR"}, operands, ["y"], "k_quant_type"
    yield op, {**plain, "sliding_window_cache": 1, "local_window_size": 2}, operands, ["y"], "sliding_window_cache"
    yield op, plain, [*operands, *[None] * 7, f32(16), f32(16)], ["y"], "q_norm_weight"
    yield op, {**plain, "do_rotary": 1}, operands, ["y"], "cos_cache"
    yield op, {**plain, "causal": 0, "local_window_size": 2}, operands, ["y"], "local_window_size"
    yield op, {"num_heads": 4, "kv_num_heads": 3}, operands, ["y"], "kv_num_heads"
    yield op, plain, [query, key, None, None, None, lengths, total], ["y"], "values"
    shape = {"K": 32, "N": 6, "block_size": 16}
    b, scales = Fixed(integers(U8, 6, 2, 8)), Fixed(f32(12))
    yield "MatMulNBits", {**shape, "bits": 3}, [f32(3, 32), b, scales], ["y"], "bits"
    yield "MatMulNBits", {**shape, "weight_prepacked": 1}, [f32(3, 32), b, scales], ["y"], "weight_prepacked"
    yield "MatMulBnb4", {"K": 32, "N": 8, "block_size": 16, "quant_type": 1, "transB": 0}, [f32(3, 32), Fixed(integers(U8, 128)), Fixed(f32(16))], ["y"], "transB"
    yield "CDist", {"metric": "cosine"}, [f32(3, 2), f32(4, 2)], ["y"], "metric"
    experts = [f32(3, 16), f32(3, 2), Fixed(f32(2, 8, 16)), None, Fixed(f32(2, 16, 8))]
    yield "MoE", {"use_sparse_mixer": 1, "k": 2}, experts, ["y"], "use_sparse_mixer"
    yield "MoE", {"activation_type": "swiglu"}, experts, ["y"], "fc3"
    yield "MoE", {"activation_type": "tanh"}, experts, ["y"], "activation"
    numbers = [*experts[:2], Fixed(integers(U8, 2, 8, 8)), Fixed(f32(2, 8)), None, Fixed(integers(U8, 2, 16, 4)), Fixed(f32(2, 16))]
    yield "QMoE", {"quant_type": "fp4"}, numbers, ["y"], "quant_type"
    yield "QMoE", {"weights_prepacked": 1}, numbers, ["y"], "weights_prepacked"
    yield "QMoE", {"expert_weight_bits": 3}, numbers, ["y"], "bits"


def model_of(op, attributes, operands, results):
    nodes, inputs, constants, feeds = [], [], [], {}
    names = []
    for k, operand in enumerate(operands):
        if operand is None:
            names.append("")
            continue
        names.append(f"x{k}")
        if isinstance(operand, Fixed):
            constants.append(numpy_helper.from_array(operand.array, names[-1]))
        else:
            feeds[names[-1]] = operand
            inputs.append(helper.make_tensor_value_info(names[-1], helper.np_dtype_to_tensor_dtype(operand.dtype), operand.shape))
    nodes.append(helper.make_node(op, names, [r or "" for r in results], "node", domain="" if op in IN_ONNX else DOMAIN, **attributes))
    outputs = [onnx.ValueInfoProto(name=r) for r in results if r]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)], ir_version=8), feeds


def typed(model, wanted):
    """ONNX wants the types of a model's outputs."""
    for o in model.graph.output:
        want = wanted[o.name]
        o.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(want.dtype)
        for _ in want.shape:
            o.type.tensor_type.shape.dim.add()
    return model


def compared(op, got, want):
    if op in ROUNDED and np.issubdtype(want.dtype, np.integer):
        off = np.abs(got.astype(np.int64) - want.astype(np.int64))
        return None if got.shape == want.shape and off.max(initial=0) <= 1 and np.mean(off) <= 0.05 else f"off by up to {off.max()}, {np.mean(off)} on average"
    return tolerance.difference(got, want)


def judge(report, number, many):
    """Cases of cases() as one model, which is much faster; each by itself where that does not run."""
    merged, feeds, results = None, {}, []
    for k, case in enumerate(many):
        model, given = model_of(*case)
        model = compose.add_prefix(model, f"c{k}_")
        feeds |= {f"c{k}_{name}": o for name, o in given.items()}
        results.append([o.name for o in model.graph.output])
        if merged is None:
            merged = model
            continue
        for part in ("node", "input", "output", "initializer"):
            getattr(merged.graph, part).extend(getattr(model.graph, part))
    flat = [name for names in results for name in names]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(merged.SerializeToString(), options, providers=["CPUExecutionProvider"])
    want = dict(zip(flat, session.run(flat, feeds)))
    path, inputs, outputs = (report.folder / f"{number}.{suffix}" for suffix in ("onnx", "npz", "out.npz"))
    onnx.save(typed(merged, want), path)
    np.savez(inputs, **feeds)
    strict = ["--no-interpreter"] if many[0][0] in COMPILED else []
    done = harness.run("run", path, "--inputs", inputs, "--outputs", outputs, *strict)
    if done.code != harness.OK:
        if len(many) == 1:
            op, attributes, operands, _ = many[0]
            report.check(described(op, attributes, operands), done.tail())
        for k, case in enumerate(many if len(many) > 1 else ()):
            judge(report, f"{number}_{k}", [case])
        return
    with np.load(outputs) as got:
        for (op, attributes, operands, _), names in zip(many, results):
            report.check(described(op, attributes, operands), next((f"{name}: {text}" for name in names if (text := compared(op, got[name], want[name]))), None))


def described(op, attributes, operands):
    return f"{op} {attributes} of {[None if o is None else list((o.array if isinstance(o, Fixed) else o).shape) for o in operands]}"


def main():
    report = harness.Report()
    wanted = sys.argv[1] if len(sys.argv) > 1 else "*"
    chosen = list(cases())
    seen = {case[0] for case in chosen}
    for op, same in itertools.groupby(chosen, lambda case: case[0]):
        same = list(same)
        if fnmatch.fnmatch(op, wanted):
            for number in range(0, len(same), 8):
                judge(report, f"{len(list(report.folder.iterdir()))}", same[number:number + 8])
    for number, (op, attributes, operands, results, reason) in enumerate(refused()):
        if fnmatch.fnmatch(op, wanted):
            path = report.folder / f"refused{number}.onnx"
            onnx.save(typed(model_of(op, attributes, operands, results)[0], {r: operands[0] for r in results}), path)
            report.check(f"{op} {attributes} is refused", harness.refusal(harness.run("explain", path), harness.UNSUPPORTED, reason))
    if wanted == "*":  # none is there untested
        texts = (path.read_text() for path in (HERE.parent.parent / "rules/ops").glob("contrib*.yaml"))
        described = {op for text in texts for op in re.findall(rf"- op: (\w+)\n    domain: {DOMAIN}\n", text)}
        report.check("every operator has cases", f"none for {sorted(described - seen)}" if described - seen else None)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
