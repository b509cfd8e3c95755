"""The interface of onnxruntime over ferrule: `import ferrule.ort as ort`.

What programs use of it is here (sessions, options, OrtValue, bindings, exceptions); options that say how onnxruntime works inside are taken
and change nothing. For a program that imports onnxruntime itself: `sys.modules["onnxruntime"] = ferrule.ort`, before it does."""
from __future__ import annotations

import enum
import os
import warnings
from typing import Any, Mapping, Sequence

import numpy as np

from ferrule import Error as _Error
from ferrule import Session as _Session
from ferrule import _library as _lib
from ferrule.ort._exceptions import (EPFail, EngineError, Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, ModelLoaded, NoModel,
                                     NoSuchFile, NotImplemented, RuntimeException)

__version__ = "1.23.2"  # whose interface this is
__author__ = "ferrule"


class GraphOptimizationLevel(enum.IntEnum):
    ORT_DISABLE_ALL = 0  # no rule is applied
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(enum.IntEnum):
    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(enum.IntEnum):
    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0


for _enum in (GraphOptimizationLevel, ExecutionMode, ExecutionOrder, OrtAllocatorType, OrtMemType):
    globals().update({name: member for name, member in _enum.__members__.items()})


class _Options:
    """Takes what onnxruntime takes; warns about what it does not know."""

    _known: dict[str, Any] = {}

    def __init__(self):
        for name, value in self._known.items():
            object.__setattr__(self, name, value)
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_") and name not in self._known:
            warnings.warn(f"ferrule.ort: {type(self).__name__} has no option {name}; it changes nothing", stacklevel=2)
        object.__setattr__(self, name, value)

    def add_session_config_entry(self, key: str, value: str) -> None:
        self._entries[key] = value

    def get_session_config_entry(self, key: str) -> str:
        if key not in self._entries:
            raise Fail(f"[ONNXRuntimeError] : 1 : FAIL : SessionOptions does not have configuration with key: {key}")
        return self._entries[key]


class SessionOptions(_Options):
    """intra_op_num_threads and graph_optimization_level (ORT_DISABLE_ALL: no rule is applied) count; the others change nothing."""

    _known = {"intra_op_num_threads": 0, "inter_op_num_threads": 0, "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
              "execution_mode": ExecutionMode.ORT_SEQUENTIAL, "execution_order": ExecutionOrder.DEFAULT, "enable_cpu_mem_arena": True,
              "enable_mem_pattern": True, "enable_mem_reuse": True, "enable_profiling": False, "log_severity_level": -1,
              "log_verbosity_level": 0, "logid": "", "optimized_model_filepath": "", "profile_file_prefix": "onnxruntime_profile_",
              "use_deterministic_compute": False, "use_per_session_threads": True}

    def __init__(self):
        super().__init__()
        self._sizes: dict[str, int] = {}

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        self._sizes[name] = size

    def add_free_dimension_override_by_denotation(self, name: str, size: int) -> None:
        """Nothing is planned before the sizes are known."""

    def register_custom_ops_library(self, path: str) -> None:
        raise NotImplemented("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ferrule takes operators as formulas (rules/ops), not as libraries")

    def has_providers(self) -> bool:
        return False


class RunOptions(_Options):
    _known = {"log_severity_level": -1, "log_verbosity_level": 0, "logid": "", "only_execute_path_to_fetches": False, "terminate": False,
              "training_mode": False}

    add_run_config_entry = _Options.add_session_config_entry
    get_run_config_entry = _Options.get_session_config_entry


class NodeArg:
    def __init__(self, port):
        self.name = port.name
        self.type = f"tensor({port.type})"
        self.shape = list(port.shape) if port.shape is not None else []

    def __repr__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class ModelMetadata:
    def __init__(self, m: Mapping[str, Any]):
        self.producer_name = m["producer"].split(" ")[0]
        self.graph_name, self.domain, self.description, self.version = m["graph"], m["domain"], m["description"], m["version"]
        self.graph_description = ""
        self.custom_metadata_map = dict(m["metadata"])


class OrtDevice:
    def __init__(self, kind: str = "cpu", index: int = 0):
        self._kind, self._index = kind, index

    @staticmethod
    def make(kind: str, index: int = 0) -> OrtDevice:
        return OrtDevice(kind, index)

    @staticmethod
    def cpu() -> int:
        return 0

    @staticmethod
    def cuda() -> int:
        return 1

    def device_type(self) -> str:
        return self._kind

    def device_id(self) -> int:
        return self._index


class OrtValue:
    """An array of the host's. Arrays for a GPU are copied by each run."""

    def __init__(self, array: np.ndarray):
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        return OrtValue(np.ascontiguousarray(array))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(array: np.ndarray, onnx_element_type: int) -> OrtValue:
        return OrtValue(np.ascontiguousarray(array).view(_lib.numpy_type(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        dtype = _lib.numpy_type(element_type) if isinstance(element_type, int) else np.dtype(element_type)
        return OrtValue(np.empty(shape, dtype))

    def numpy(self) -> np.ndarray:
        return self._array

    def data_ptr(self) -> int:
        return self._array.ctypes.data

    def data_type(self) -> str:
        return f"tensor({_lib.NAMES[_lib.onnx_type(self._array.dtype)]})"

    def element_type(self) -> int:
        return _lib.onnx_type(self._array.dtype)

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def tensor_size_in_bytes(self) -> int:
        return self._array.nbytes

    def device_name(self) -> str:
        return "cpu"

    def has_value(self) -> bool:
        return True

    def is_tensor(self) -> bool:
        return True

    def is_tensor_sequence(self) -> bool:
        return False

    def is_sparse_tensor(self) -> bool:
        return False

    def update_inplace(self, array: np.ndarray) -> None:
        np.copyto(self._array, array)

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(self._array, dtype=dtype) if copy or dtype is not None else self._array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(value: Any, is_bool_tensor: bool = False) -> OrtValue:
        array = np.from_dlpack(value)
        return OrtValue(array.view(np.bool_) if is_bool_tensor else array)


def _array(value: Any, wanted) -> np.ndarray:
    if isinstance(value, OrtValue):
        return value.numpy()
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        return np.from_dlpack(value)
    return np.asarray(value, wanted.dtype if wanted is not None else None)


class IOBinding:
    def __init__(self, session: InferenceSession):
        self._session = session
        self._inputs: dict[str, np.ndarray] = {}
        self._outputs: dict[str, np.ndarray | None] = {}
        self._results: dict[str, np.ndarray] = {}

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        self._inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._inputs[name] = value.numpy()

    @staticmethod
    def _at(address: int, shape: Sequence[int], element_type: Any) -> np.ndarray:
        import ctypes
        dtype = _lib.numpy_type(element_type) if isinstance(element_type, int) else np.dtype(element_type)
        count = int(np.prod(shape, dtype=np.int64))
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int) -> None:
        self._host(device_type)
        self._inputs[name] = self._at(buffer_ptr, shape, element_type)

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None, shape: Sequence[int] | None = None,
                    buffer_ptr: int | None = None) -> None:
        self._outputs[name] = None
        if buffer_ptr is not None:
            self._host(device_type)
            self._outputs[name] = self._at(buffer_ptr, shape or (), element_type)

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        self._outputs[name] = value.numpy()

    @staticmethod
    def _host(device: str) -> None:
        if device not in ("cpu", "cuda_pinned"):
            raise NotImplemented(f"[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : memory on {device} cannot be bound, the host's can")

    def synchronize_inputs(self) -> None:
        """A run returns when it is done."""

    synchronize_outputs = synchronize_inputs

    def get_outputs(self) -> list[OrtValue]:
        return [OrtValue(a) for a in self._results.values()]

    def get_outputs_as_ortvaluevector(self) -> list[OrtValue]:
        return self.get_outputs()

    def copy_outputs_to_cpu(self) -> list[np.ndarray]:
        return list(self._results.values())

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()

    def _run(self) -> None:
        into = {name: a for name, a in self._outputs.items() if a is not None}
        rest = [name for name, a in self._outputs.items() if a is None]
        made = self._session._run(rest, self._inputs, into)
        self._results = {name: into[name] if name in into else made[name] for name in self._outputs}


_KINDS = {"file_not_found": (NoSuchFile, 3, "NO_SUCHFILE"), "not_onnx": (InvalidProtobuf, 7, "INVALID_PROTOBUF"),
          "model_invalid": (InvalidGraph, 10, "INVALID_GRAPH"), "graph_cycle": (InvalidGraph, 10, "INVALID_GRAPH"),
          "dangling_input": (InvalidGraph, 10, "INVALID_GRAPH"), "duplicate_value": (InvalidGraph, 10, "INVALID_GRAPH"),
          "unknown_operator": (NotImplemented, 9, "NOT_IMPLEMENTED"), "unsupported_operator": (NotImplemented, 9, "NOT_IMPLEMENTED"),
          "unsupported_type": (NotImplemented, 9, "NOT_IMPLEMENTED"), "opset_unsupported": (NotImplemented, 9, "NOT_IMPLEMENTED"),
          "unknown_input": (InvalidArgument, 2, "INVALID_ARGUMENT"), "missing_input": (InvalidArgument, 2, "INVALID_ARGUMENT"),
          "input_mismatch": (InvalidArgument, 2, "INVALID_ARGUMENT"), "bad_shape": (InvalidArgument, 2, "INVALID_ARGUMENT"),
          "usage": (InvalidArgument, 2, "INVALID_ARGUMENT")}


def _raise(e: _Error) -> None:
    kind, number, name = _KINDS.get(e.code, (Fail, 1, "FAIL"))
    raise kind(f"[ONNXRuntimeError] : {number} : {name} : {e}") from e


def _names(providers: Sequence[Any] | None) -> list[str]:
    return [p[0] if isinstance(p, (tuple, list)) else p for p in providers or ()]


class InferenceSession:
    def __init__(self, path_or_bytes: str | os.PathLike | bytes, sess_options: SessionOptions | None = None,
                 providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping] | None = None, **kwargs: Any):
        for name in kwargs:
            warnings.warn(f"ferrule.ort: InferenceSession takes no {name}; it changes nothing", stacklevel=2)
        self._options = sess_options or SessionOptions()
        self._load(path_or_bytes, _names(providers))

    def _load(self, model: Any, providers: list[str]) -> None:
        available = get_available_providers()
        unknown = [p for p in providers if p not in available]
        if unknown and unknown != providers:
            warnings.warn(f"Specified provider '{unknown[0]}' is not in available provider names. Available providers: '{', '.join(available)}'",
                          stacklevel=3)
        self._model = model
        self._providers = [p for p in providers if p in available] or ["CPUExecutionProvider"]
        o = self._options
        cuda = self._providers[0] == "CUDAExecutionProvider"
        try:
            self._session = _Session(
                model, target=None if cuda else "host", threads=max(0, o.intra_op_num_threads),
                no_fusion=o.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL)
        except _Error as e:
            _raise(e)
        self._inputs = {p.name: p for p in self._session.inputs}
        self._required = [p.name for p in self._session.inputs if not p.optional]

    # --- the model ------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return [NodeArg(p) for p in self._session.inputs if not p.optional]

    def get_overridable_initializers(self) -> list[NodeArg]:
        return [NodeArg(p) for p in self._session.inputs if p.optional]

    def get_outputs(self) -> list[NodeArg]:
        return [NodeArg(p) for p in self._session.outputs]

    def get_modelmeta(self) -> ModelMetadata:
        return ModelMetadata(self._session.metadata)

    def get_session_options(self) -> SessionOptions:
        return self._options

    def get_providers(self) -> list[str]:
        return list(self._providers) + (["CPUExecutionProvider"] if "CPUExecutionProvider" not in self._providers else [])

    def get_provider_options(self) -> dict[str, dict]:
        return {p: {} for p in self.get_providers()}

    def set_providers(self, providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping] | None = None) -> None:
        self._load(self._model, _names(providers))

    def enable_fallback(self) -> None:
        """What a provider cannot run, the processor runs; there is nothing to switch."""

    disable_fallback = enable_fallback

    def end_profiling(self) -> str:
        return ""

    # --- runs -----------------------------------------------------------------------------------------

    def _feed(self, feed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        missing = [n for n in self._required if n not in feed]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        out = {}
        for name, value in feed.items():
            port = self._inputs.get(name)
            if port is None:
                raise InvalidArgument(f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid input name: {name}")
            if value is None:
                continue
            array = _array(value, port)
            try:
                actual = _lib.NAMES[_lib.onnx_type(array.dtype)]
            except TypeError as e:
                raise RuntimeException(f"Input {name}: {e}") from None
            if actual != port.type:
                raise InvalidArgument("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Unexpected input data type. Actual: "
                                      f"(tensor({actual})) , expected: (tensor({port.type}))")
            out[name] = array
        return out

    def _run(self, names: Sequence[str], feed: Mapping[str, Any], into: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        arrays = self._feed(feed)
        try:
            if not into:
                return self._session.run(arrays, names or None)
            if names:  # some in the caller's memory, some not
                out = self._session.run(arrays, [*names, *into])
                for name, array in into.items():
                    np.copyto(array, out.pop(name))
                return out
            self._session.run_into(arrays, into)
            return {}
        except _Error as e:
            _raise(e)
            raise AssertionError from e

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None) -> list[np.ndarray]:
        names = list(output_names or ())
        known = [p.name for p in self._session.outputs]
        for name in names:
            if name not in known:
                raise InvalidArgument(f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid output name: {name}")
        if run_options is not None and run_options.terminate:
            raise Fail("[ONNXRuntimeError] : 1 : FAIL : Exiting due to terminate flag being set to true.")
        out = self._run(names, input_feed)
        return [out[name] for name in names or known]

    def run_async(self, output_names, input_feed, callback, user_data, run_options: RunOptions | None = None) -> None:
        import threading

        def work() -> None:
            try:
                results, error = self.run(output_names, input_feed, run_options), ""
            except Exception as e:  # pylint: disable=broad-except
                results, error = [], str(e)
            callback(results, user_data, error)
        threading.Thread(target=work, daemon=True).start()

    def run_with_ort_values(self, output_names, input_dict_ort_values, run_options: RunOptions | None = None) -> list[OrtValue]:
        return [OrtValue(a) for a in self.run(output_names, input_dict_ort_values, run_options)]

    def run_with_ortvaluevector(self, *_: Any) -> None:
        raise NotImplemented("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : run_with_ortvaluevector; run_with_ort_values is there")

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        iobinding._run()


# --- of the module ---------------------------------------------------------------------------------------

_severity = 2


def _has_gpu() -> bool:
    import ctypes
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        return driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
    except OSError:
        return False


def get_available_providers() -> list[str]:
    return (["CUDAExecutionProvider"] if _has_gpu() else []) + ["CPUExecutionProvider"]


def get_all_providers() -> list[str]:
    return ["CUDAExecutionProvider", "CPUExecutionProvider"]


def get_device() -> str:
    return "GPU" if _has_gpu() else "CPU"


def get_version_string() -> str:
    return __version__


def get_build_info() -> str:
    import ferrule
    return f"ferrule {ferrule.__version__}"


def set_default_logger_severity(severity: int) -> None:
    if not 0 <= severity <= 4:
        raise ValueError("Only 0 (verbose), 1 (info), 2 (warning), 3 (error), 4 (fatal) are supported.")
    global _severity
    _severity = severity


def set_default_logger_verbosity(verbosity: int) -> None:
    """ferrule has one level of detail."""


def set_seed(seed: int) -> None:
    """Models that draw random numbers give their own seed."""


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: str | None = None) -> None:
    """ferrule finds its libraries when a session is made."""


def enable_telemetry_events() -> None:
    """There are none."""


disable_telemetry_events = enable_telemetry_events
