"""The C interface (ferrule.h) by ctypes. Calls release the GIL."""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, byref, c_char_p, c_int32, c_int64, c_size_t, c_void_p

import numpy as np

FOLDER = pathlib.Path(__file__).resolve().parent


class Error(RuntimeError):
    """What went wrong: `code` never changes ("bad_shape"), `place` says where, `hint` what to do."""

    def __init__(self, text: str, code: str = "", place: str = "", message: str = "", hint: str = "", exit_code: int = 0):
        super().__init__(text)
        self.code, self.place, self.message, self.hint, self.exit_code = code, place, message, hint, exit_code

    def __reduce__(self):
        return type(self), (str(self), self.code, self.place, self.message, self.hint, self.exit_code)


class Tensor(Structure):
    _fields_ = [("name", c_char_p), ("data", c_void_p), ("dims", POINTER(c_int64)), ("bytes", c_size_t), ("rank", c_int32), ("type", c_int32)]


class Port(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("dims", POINTER(c_int64)), ("symbols", POINTER(c_char_p)),
                ("rank", c_int32), ("type", c_int32), ("optional", c_int32)]


LogCallback = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)


class Options(Structure):
    _fields_ = [("size", c_size_t), ("backend", c_char_p), ("target", c_char_p), ("rules", c_char_p), ("rule_folders", POINTER(c_char_p)),
                ("enable", POINTER(c_char_p)), ("disable", POINTER(c_char_p)), ("override_files", POINTER(c_char_p)),
                ("allow_unproven", POINTER(c_char_p)), ("tuning", c_char_p), ("cache", c_char_p), ("log", LogCallback),
                ("log_context", c_void_p), ("log_level", c_int32), ("threads", c_int32), ("concurrent_runs", c_int32),
                ("require_device", c_int32), ("strict", c_int32), ("fast_math", c_int32), ("no_fusion", c_int32), ("overridable", c_int32)]


def _open() -> ctypes.CDLL:
    """$FERRULE_LIBRARY, else what lies in this package, else what the system finds."""
    given = os.environ.get("FERRULE_LIBRARY")
    packed = FOLDER / "lib" / "libferrule.so.0"
    path = given or (str(packed) if packed.exists() else "libferrule.so.0")
    # What a copy-on-write idle thread costs is decided when OpenMP is brought in: see the backends.
    try:
        lib = ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as e:
        raise ImportError(f"ferrule: cannot load {path}: {e}. Install the wheel, or set FERRULE_LIBRARY to libferrule.so.0 of a build") from None
    status = c_void_p
    for name, result, *arguments in (
            ("version", c_char_p),
            ("status_code", c_char_p, c_void_p), ("status_exit_code", c_int32, c_void_p), ("status_place", c_char_p, c_void_p),
            ("status_message", c_char_p, c_void_p), ("status_hint", c_char_p, c_void_p), ("status_text", c_char_p, c_void_p),
            ("status_free", None, c_void_p),
            ("session_create", status, c_char_p, POINTER(Options), POINTER(c_void_p)),
            ("session_create_from_bytes", status, c_char_p, c_size_t, POINTER(Options), POINTER(c_void_p)),
            ("session_free", None, c_void_p), ("session_cancel", None, c_void_p),
            ("session_input_count", c_size_t, c_void_p), ("session_output_count", c_size_t, c_void_p),
            ("session_input", status, c_void_p, c_size_t, POINTER(Port)), ("session_output", status, c_void_p, c_size_t, POINTER(Port)),
            ("session_view", status, c_void_p, c_int32, POINTER(Tensor), c_size_t, POINTER(c_void_p)), ("text_free", None, c_void_p),
            ("run", status, c_void_p, POINTER(Tensor), c_size_t, POINTER(c_char_p), c_size_t, POINTER(c_void_p)),
            ("run_into", status, c_void_p, POINTER(Tensor), c_size_t, POINTER(Tensor), c_size_t),
            ("results_count", c_size_t, c_void_p), ("results_get", status, c_void_p, c_size_t, POINTER(Tensor)), ("results_free", None, c_void_p)):
        function = getattr(lib, "ferrule_" + name)
        function.restype, function.argtypes = result, arguments
    return lib


C = _open()


def check(status: int | None) -> None:
    if not status:
        return

    def text(what: str) -> str:
        return getattr(C, "ferrule_status_" + what)(status).decode("utf-8", "replace")
    error = Error(text("text"), text("code"), text("place"), text("message"), text("hint"), C.ferrule_status_exit_code(status))
    C.ferrule_status_free(status)
    raise error


def strings(values) -> ctypes.Array | None:
    """A list that ends with NULL."""
    if not values:
        return None
    encoded = [os.fsencode(v) for v in ([values] if isinstance(values, (str, os.PathLike)) else values)]
    return (c_char_p * (len(encoded) + 1))(*encoded, None)


# --- element types ----------------------------------------------------------------------------------

NAMES = {1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 8: "string", 9: "bool", 10: "float16",
         11: "double", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128", 16: "bfloat16", 17: "float8e4m3fn",
         18: "float8e4m3fnuz", 19: "float8e5m2", 20: "float8e5m2fnuz", 21: "uint4", 22: "int4", 23: "float4e2m1",
         25: "uint2", 26: "int2", 64: "sequence", 65: "optional", 66: "map"}
_NUMPY = {1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64, 9: np.bool_, 10: np.float16,
          11: np.float64, 12: np.uint32, 13: np.uint64, 14: np.complex64, 15: np.complex128}
_ML = {16: "bfloat16", 17: "float8_e4m3fn", 18: "float8_e4m3fnuz", 19: "float8_e5m2", 20: "float8_e5m2fnuz"}
_PACKED = (21, 22, 23, 25, 26)


def numpy_type(type_: int) -> np.dtype:
    """What ONNX's element type is in numpy; ml_dtypes knows the short floats.  errors: TypeError."""
    if type_ in _NUMPY:
        return np.dtype(_NUMPY[type_])
    if type_ == 8:
        return np.dtype(object)
    if type_ in _ML:
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"{NAMES[type_]} needs the package ml_dtypes") from None
        return np.dtype(getattr(ml_dtypes, _ML[type_]))
    if type_ in _PACKED:  # two or four elements a byte
        return np.dtype(np.uint8)
    raise TypeError(f"element type {type_} has no numpy type")


def onnx_type(dtype: np.dtype) -> int:
    """errors: TypeError."""
    dtype = dtype.newbyteorder("=")
    for number, known in _NUMPY.items():
        if dtype == known:
            return number
    if dtype.kind in "OUS":
        return 8
    for number, name in _ML.items():
        if dtype.name == name:
            return number
    raise TypeError(f"numpy's {dtype} is no element type of ONNX")


class Arguments:
    """Arrays as tensors of C's. Keeps alive what they point to."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.keep: list = []
        self.tensors = (Tensor * len(arrays))()
        for tensor, (name, array) in zip(self.tensors, arrays.items()):
            dims = (c_int64 * array.ndim)(*array.shape)
            tensor.name, tensor.dims, tensor.rank = name.encode(), dims, array.ndim
            tensor.type = onnx_type(array.dtype)
            if tensor.type == 8:
                encoded = [x if isinstance(x, bytes) else str(x).encode() for x in array.ravel()]
                texts = (c_char_p * len(encoded))(*encoded)
                tensor.data = ctypes.cast(texts, c_void_p)
                self.keep.append(texts)
            else:
                data = array if array.flags.c_contiguous and array.dtype.isnative else np.ascontiguousarray(array, array.dtype.newbyteorder("="))
                tensor.data, tensor.bytes = data.ctypes.data, data.nbytes
                self.keep.append(data)
            self.keep.append(dims)

    def __len__(self) -> int:
        return len(self.tensors)


class _Results:
    def __init__(self, handle: int | None):
        self.handle = handle

    def __del__(self):
        C.ferrule_results_free(self.handle)


def take_results(handle: c_void_p) -> dict[str, np.ndarray]:
    """Arrays over the memory of the results, which goes with the last of them."""
    results = _Results(handle.value)
    out = {}
    for k in range(C.ferrule_results_count(handle)):
        t = Tensor()
        check(C.ferrule_results_get(handle, k, byref(t)))
        shape = tuple(t.dims[d] for d in range(t.rank))
        if t.type == 8:
            count = int(np.prod(shape, dtype=np.int64))
            texts = ctypes.cast(t.data, POINTER(c_char_p))
            array = np.array([texts[i].decode("utf-8", "replace") for i in range(count)], dtype=object).reshape(shape)
        elif t.bytes == 0:
            array = np.empty(shape, numpy_type(t.type))
        else:
            memory = (ctypes.c_char * t.bytes).from_address(t.data)
            memory.results = results
            array = np.frombuffer(memory, numpy_type(t.type))
            array = array if t.type in _PACKED else array.reshape(shape)
        out[t.name.decode()] = array
    return out
