"""The interface of onnxruntime over ferrule: `import ferrule.ort as ort`.

What programs use of it is here (sessions, options, OrtValue, bindings, exceptions); options that say how onnxruntime works inside are taken
and change nothing. For a program that imports onnxruntime itself: `sys.modules["onnxruntime"] = ferrule.ort`, before it does."""
from __future__ import annotations

import dataclasses
import enum
import os
import subprocess
import tempfile
import warnings
from typing import Any, Mapping, Sequence

import numpy as np

from ferrule import Error as _Error
from ferrule import Session as _Session
from ferrule import _library as _lib
from ferrule import program as _program
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
    _enum.__str__ = enum.Enum.__str__  # type: ignore[method-assign]
    globals().update({name: member for name, member in _enum.__members__.items()})


class _Options:
    """Takes what onnxruntime takes; warns about what it does not know."""

    _known: dict[str, Any] = {}

    def __init__(self):
        for name, value in self._known.items():
            object.__setattr__(self, name, value)
        self._entries: dict[str, str] = {}

    def __setattr__(self, name: str, value: Any) -> None:
        if not name.startswith("_"):
            if name not in self._known:
                warnings.warn(f"ferrule.ort: {type(self).__name__} has no option {name}; it changes nothing", stacklevel=2)
            else:
                kind = type(self._known[name])
                if not (isinstance(value, (int, np.integer)) if kind is int else isinstance(value, kind)):
                    raise TypeError(f"{type(self).__name__}.{name} is a {kind.__name__}, not a {type(value).__name__}")
            if name == "enable_profiling" and value:
                warnings.warn("ferrule.ort writes no profile: end_profiling() returns ''; `ferrule bench` and `ferrule tune` time a model", stacklevel=2)
        object.__setattr__(self, name, value)

    def _add_entry(self, key: str, value: str) -> None:
        if not (isinstance(key, str) and isinstance(value, str)):
            raise TypeError(f"keys and values of {type(self).__name__} are strings: {key!r}, {value!r}")
        self._entries[key] = value

    def _get_entry(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {key}")
        return self._entries[key]


class SessionOptions(_Options):
    """What counts: intra_op_num_threads, graph_optimization_level (ORT_DISABLE_ALL: no rule is applied), optimized_model_filepath and
    free dimensions by name. The others change nothing."""

    _known = {"intra_op_num_threads": 0, "inter_op_num_threads": 0, "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
              "execution_mode": ExecutionMode.ORT_SEQUENTIAL, "execution_order": ExecutionOrder.DEFAULT, "enable_cpu_mem_arena": True,
              "enable_mem_pattern": True, "enable_mem_reuse": True, "enable_profiling": False, "log_severity_level": -1,
              "log_verbosity_level": 0, "logid": "", "optimized_model_filepath": "", "profile_file_prefix": "onnxruntime_profile_",
              "use_deterministic_compute": False, "use_per_session_threads": True}

    def __init__(self):
        super().__init__()
        self._sizes: dict[str, int] = {}

    add_session_config_entry = _Options._add_entry
    get_session_config_entry = _Options._get_entry

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        self._sizes[name] = size

    def add_free_dimension_override_by_denotation(self, name: str, size: int) -> None:
        """Nothing is planned before the sizes are known."""

    def register_custom_ops_library(self, path: str) -> None:
        raise NotImplemented("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ferrule takes operators as formulas (rules/ops), not as libraries")

    def add_initializer(self, name: str, value: OrtValue) -> None:
        raise NotImplemented("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ferrule takes weights from the model's files")

    def has_providers(self) -> bool:
        return False


class RunOptions(_Options):
    _known = {"log_severity_level": -1, "log_verbosity_level": 0, "logid": "", "only_execute_path_to_fetches": False, "terminate": False,
              "training_mode": False}

    add_run_config_entry = _Options._add_entry
    get_run_config_entry = _Options._get_entry


class NodeArg:
    def __init__(self, port):
        self.name = port.name
        self.type = f"tensor({port.type})"
        self.shape = list(port.shape) if port.shape is not None else []

    def __repr__(self) -> str:
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


class ModelMetadata:
    def __init__(self, m: Mapping[str, Any]):
        self.producer_name = m["producer_name"]
        self.graph_name, self.domain, self.description, self.version = m["graph"], m["domain"], m["description"], m["version"]
        self.graph_description = m["graph_description"]
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


def _device(kind: str) -> None:
    """errors: RuntimeError."""
    if kind.lower() not in ("cpu", "cuda", "gpu", "cuda_pinned"):
        raise RuntimeError(f"Unsupported device type: {kind}")
    if kind.lower() in ("cuda", "gpu") and not _has_gpu():
        raise RuntimeError(f"no memory on {kind}: there is no GPU")


class OrtValue:
    """An array of the host's. Arrays for a GPU are copied by each run."""

    def __init__(self, array: np.ndarray):
        self._array = array

    @staticmethod
    def ortvalue_from_numpy(array: np.ndarray, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        _device(device_type)
        return OrtValue(np.asarray(array, order="C"))

    @staticmethod
    def ortvalue_from_numpy_with_onnx_type(array: np.ndarray, onnx_element_type: int) -> OrtValue:
        return OrtValue(np.asarray(array, order="C").view(_lib.numpy_type(onnx_element_type)))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: Any = np.float32, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        _device(device_type)
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
        if array.shape != self._array.shape or array.dtype != self._array.dtype:
            raise RuntimeError(f"an array of {array.dtype}{list(array.shape)} cannot update one of {self._array.dtype}{list(self._array.shape)}")
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

    def _bind_input(self, name: str, array: np.ndarray) -> None:
        if name not in self._session._inputs:
            raise RuntimeError(f"Failed to find NodeArg with name: {name} in the def list")
        self._inputs[name] = array

    def bind_cpu_input(self, name: str, array: np.ndarray) -> None:
        self._bind_input(name, array)

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self._bind_input(name, value.numpy())

    @staticmethod
    def _at(address: int, shape: Sequence[int], element_type: Any) -> np.ndarray:
        import ctypes
        dtype = _lib.numpy_type(element_type) if isinstance(element_type, int) else np.dtype(element_type)
        count = int(np.prod(shape, dtype=np.int64))
        memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
        return np.frombuffer(memory, dtype, count).reshape(shape)

    def bind_input(self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int) -> None:
        self._host(device_type)
        self._bind_input(name, self._at(buffer_ptr, shape, element_type))

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0, element_type: Any = None, shape: Sequence[int] | None = None,
                    buffer_ptr: int | None = None) -> None:
        if buffer_ptr is None:
            self._outputs[name] = None
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are to be provided if pre-allocated memory is provided")
        self._host(device_type)
        self._outputs[name] = self._at(buffer_ptr, shape, element_type)

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
        if not self._outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        into = {name: a for name, a in self._outputs.items() if a is not None}
        rest = [name for name, a in self._outputs.items() if a is None]
        try:
            made = self._session._run(rest, self._inputs, into)
        except (*_EXCEPTIONS, ValueError) as e:
            raise RuntimeError(f"Error in execution: {e}") from e
        self._results = {name: into[name] if name in into else made[name] for name in self._outputs}


_EXCEPTIONS = (EPFail, EngineError, Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, ModelLoaded, NoModel, NoSuchFile, NotImplemented,
               RuntimeException)
_KINDS = {"file_not_found": (NoSuchFile, 3, "NO_SUCHFILE"), "not_onnx": (InvalidProtobuf, 7, "INVALID_PROTOBUF"),
          "model_invalid": (InvalidGraph, 10, "INVALID_GRAPH"), "graph_cycle": (InvalidGraph, 10, "INVALID_GRAPH"),
          "dangling_input": (InvalidGraph, 10, "INVALID_GRAPH"), "duplicate_value": (InvalidGraph, 10, "INVALID_GRAPH"),
          "unknown_operator": (NotImplemented, 9, "NOT_IMPLEMENTED"), "unsupported_operator": (NotImplemented, 9, "NOT_IMPLEMENTED"),
          "unsupported_type": (NotImplemented, 9, "NOT_IMPLEMENTED"), "opset_unsupported": (NotImplemented, 9, "NOT_IMPLEMENTED"),
          "unknown_input": (InvalidArgument, 2, "INVALID_ARGUMENT"), "missing_input": (InvalidArgument, 2, "INVALID_ARGUMENT"),
          "input_mismatch": (InvalidArgument, 2, "INVALID_ARGUMENT"), "bad_shape": (InvalidArgument, 2, "INVALID_ARGUMENT"),
          "usage": (InvalidArgument, 2, "INVALID_ARGUMENT")}


def _as_theirs(e: _Error) -> Exception:
    kind, number, name = _KINDS.get(e.code, (Fail, 1, "FAIL"))
    return kind(f"[ONNXRuntimeError] : {number} : {name} : {e}")


def _names(providers: Sequence[Any] | None, options: Sequence[Mapping] | None) -> list[str]:
    """The names of providers that are there, each once.  errors: ValueError."""
    if providers is None:
        return []
    if isinstance(providers, str) or not isinstance(providers, Sequence):
        raise ValueError("'providers' should be a sequence.")
    if options is not None and (len(options) != len(providers) or not all(isinstance(o, Mapping) for o in options)):
        raise ValueError("'provider_options' should be a sequence of dicts, one a provider.")
    available = get_available_providers()
    names: list[str] = []
    for p in providers:
        pair = isinstance(p, (tuple, list)) and len(p) == 2 and isinstance(p[0], str) and isinstance(p[1], Mapping)
        if not (pair or isinstance(p, str)):
            raise ValueError("'providers' values must be either strings or (string, dict) tuples.")
        name = p[0] if pair else p
        if name not in available:
            warnings.warn(f"Specified provider '{name}' is not in available provider names. Available providers: '{', '.join(available)}'", stacklevel=3)
        elif name in names:
            warnings.warn(f"Duplicate provider '{name}' encountered, ignoring.", stacklevel=3)
        else:
            names.append(name)
    return names


class InferenceSession:
    def __init__(self, path_or_bytes: str | os.PathLike | bytes | bytearray | memoryview, sess_options: SessionOptions | None = None,
                 providers: Sequence[Any] | None = None, provider_options: Sequence[Mapping] | None = None, **kwargs: Any):
        for name in kwargs:
            if name not in ("enable_fallback", "read_config_from_model", "disabled_optimizers"):
                warnings.warn(f"ferrule.ort: InferenceSession takes no {name}; it changes nothing", stacklevel=2)
        if not isinstance(path_or_bytes, (str, os.PathLike, bytes, bytearray, memoryview)):
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        if sess_options is not None and not isinstance(sess_options, SessionOptions):
            raise TypeError(f"sess_options is a SessionOptions, not a {type(sess_options).__name__}")
        self._options = sess_options or SessionOptions()
        try:
            names = _names(providers, provider_options)
        except ValueError as e:
            if not kwargs.get("enable_fallback", 1):
                raise
            warnings.warn(f"{e} CPUExecutionProvider runs the model.", stacklevel=2)
            names = []
        self._load(path_or_bytes, names)

    def _load(self, model: Any, providers: list[str]) -> None:
        self._model = model
        self._providers = providers or ["CPUExecutionProvider"]
        self._session = self._make()
        self._with_overrides: _Session | None = None
        sizes = self._options._sizes
        self._ports = [p if p.shape is None else dataclasses.replace(p, shape=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in p.shape))
                       for p in self._session.inputs]
        self._inputs = {p.name: p for p in self._ports}
        if self._options.optimized_model_filepath:
            self._write(self._options.optimized_model_filepath)

    def _make(self, overridable: bool = False) -> _Session:
        o = self._options
        try:
            return _Session(self._model, target=None if self._providers[0] == "CUDAExecutionProvider" else "host", threads=max(0, o.intra_op_num_threads),
                            no_fusion=o.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL, overridable=overridable)
        except _Error as e:
            raise _as_theirs(e) from e

    def _overridden(self) -> _Session:
        """Initializers that are inputs, too, are constants in the session that runs: fusions need them. Who gives one a value has another."""
        if self._with_overrides is None:
            self._with_overrides = self._make(overridable=True)
        return self._with_overrides

    def _write(self, path: str) -> None:
        """The fused model as ONNX."""
        with tempfile.NamedTemporaryFile(suffix=".onnx") as f:
            model = self._model
            if not isinstance(model, (str, os.PathLike)):
                f.write(model)
                f.flush()
                model = f.name
            plain = ["--disable", "*"] if self._options.graph_optimization_level == GraphOptimizationLevel.ORT_DISABLE_ALL else []
            done = subprocess.run([_program(), "fuse", model, "-o", path, "--force", *plain], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Fail(f"[ONNXRuntimeError] : 1 : FAIL : {done.stderr.strip()}")

    # --- the model ------------------------------------------------------------------------------------

    def get_inputs(self) -> list[NodeArg]:
        return [NodeArg(p) for p in self._ports]

    def get_overridable_initializers(self) -> list[NodeArg]:
        # Before version 4 of the format every initializer is an input, too.
        if self._session.metadata["ir_version"] < 4:
            return []
        return [NodeArg(p) for p in self._overridden().inputs if p.optional]

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
        self._load(self._model, _names(providers, provider_options))

    def enable_fallback(self) -> None:
        """What a provider cannot run, the processor runs; there is nothing to switch."""

    disable_fallback = enable_fallback

    def end_profiling(self) -> str:
        return ""

    # --- runs -----------------------------------------------------------------------------------------

    def _require(self, feed: Mapping[str, Any]) -> None:
        given = list(feed.keys())
        missing = [n for n in self._inputs if n not in feed]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({given}).")

    def _feed(self, feed: Mapping[str, Any]) -> tuple[_Session, dict[str, np.ndarray]]:
        """What runs, and its inputs."""
        self._require(feed)
        session, ports, out = self._session, self._inputs, {}
        if any(name not in ports for name in feed):
            session = self._overridden()
            ports = {p.name: p for p in session.inputs if p.optional} | ports
        for name, value in feed.items():
            port = ports.get(name)
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
            if port.shape == () and array.size == 1:
                array = array.reshape(())  # onnxruntime looks at no shape of a scalar
            elif self._options._sizes and port.shape is not None and len(port.shape) == array.ndim:
                if any(isinstance(d, int) and d != a for d, a in zip(port.shape, array.shape)):
                    raise InvalidArgument(f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Got invalid dimensions for input: {name}: "
                                          f"{list(array.shape)}, expected: {list(port.shape)}")
            out[name] = array
        return session, out

    def _run(self, names: Sequence[str], feed: Mapping[str, Any], into: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        session, arrays = self._feed(feed)
        try:
            if not into:
                return session.run(arrays, names or None)
            if names:  # some in the caller's memory, some not
                out = session.run(arrays, [*names, *into])
                for name, array in into.items():
                    if out[name].shape != array.shape or out[name].dtype != array.dtype:
                        raise InvalidArgument(f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : output {name} is {out[name].dtype}{list(out[name].shape)}, "
                                              f"the memory is for {array.dtype}{list(array.shape)}")
                    np.copyto(array, out.pop(name))
                return out
            session.run_into(arrays, into)
            return {}
        except _Error as e:
            raise _as_theirs(e) from e

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None) -> list[np.ndarray]:
        names = list(output_names or ())
        known = [p.name for p in self._session.outputs]
        for name in names:
            if name not in known:
                raise InvalidArgument(f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid output name: {name}")
        if run_options is not None and not isinstance(run_options, RunOptions):
            raise TypeError(f"run_options is a RunOptions, not a {type(run_options).__name__}")
        if run_options is not None and run_options.terminate:
            raise Fail("[ONNXRuntimeError] : 1 : FAIL : Exiting due to terminate flag being set to true.")
        out = self._run(names, input_feed)
        return [out[name] for name in names or known]

    def run_async(self, output_names, input_feed, callback, user_data, run_options: RunOptions | None = None) -> None:
        import threading
        self._require(input_feed)

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
        if iobinding._session is not self:
            raise ValueError("IOBinding must be used with the session that created it.")
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
        raise RuntimeError("Only 0 (verbose), 1 (info), 2 (warning), 3 (error), 4 (fatal) are supported.")
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
