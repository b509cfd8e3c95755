"""Providers, options, the module."""
import importlib
import os
import tempfile

import numpy as np
from common import ADD, SIZES, WEIGHT, X, args, case, session, warned
from compare import plain

# --- providers ---------------------------------------------------------------------------------------

@case
def default_providers(ort):
    return ort.InferenceSession(ADD).get_providers()[-1]


@case
def an_empty_list_of_providers(ort):
    return session(ort, providers=[]).get_providers()[-1]


@case
def an_unknown_provider(ort):
    return warned(lambda: session(ort, providers=["NothingExecutionProvider"]).get_providers())


@case
def a_provider_that_is_not_there_and_one_that_is(ort):
    return warned(lambda: session(ort, providers=["ROCMExecutionProvider", "CPUExecutionProvider"]).get_providers())


@case
def providers_in_a_string(ort):
    return session(ort, providers="CPUExecutionProvider").get_providers()


@case
def a_provider_that_is_a_number(ort):
    return session(ort, providers=[1]).get_providers()


@case
def a_provider_twice(ort):
    return warned(lambda: session(ort, providers=["CPUExecutionProvider", "CPUExecutionProvider"]).get_providers())


@case
def a_provider_with_options(ort):
    s = session(ort, providers=[("CPUExecutionProvider", {"use_arena": 1})])
    return s.get_providers(), list(s.get_provider_options())


@case
def options_of_providers(ort):
    return session(ort, providers=["CPUExecutionProvider"], provider_options=[{"use_arena": "1"}]).get_providers()


@case
def too_few_options_of_providers(ort):
    return session(ort, providers=["CPUExecutionProvider"], provider_options=[]).get_providers()


@case
def options_that_are_no_dicts(ort):
    return session(ort, providers=["CPUExecutionProvider"], provider_options=["a"]).get_providers()


@case
def set_providers(ort):
    s = session(ort)
    s.set_providers(["CPUExecutionProvider"])
    return s.get_providers(), s.run(["s"], {"x": X})


@case
def names_of_providers(ort):
    return type(ort.get_available_providers()).__name__, "CPUExecutionProvider" in ort.get_all_providers(), ort.get_available_providers()[-1]


# --- options -----------------------------------------------------------------------------------------

@case
def defaults_of_options(ort):
    return [(kind.__name__, name, plain(getattr(kind(), name))) for kind in (ort.SessionOptions, ort.RunOptions)
            for name in sorted(dir(kind())) if not name.startswith("_") and not callable(getattr(kind(), name)) and name != "training_mode"]


@case
def options_are_kept(ort):
    o = ort.SessionOptions()
    o.intra_op_num_threads, o.graph_optimization_level, o.logid = 2, ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, "mine"
    s = session(ort, sess_options=o)
    got = s.get_session_options()
    return got.intra_op_num_threads, got.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC, got.logid, s.run(["s"], {"x": X})


@case
def no_optimization(ort):
    o = ort.SessionOptions()
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return session(ort, sess_options=o).run(None, {"x": X})


@case
def unknown_option(ort):
    o = ort.SessionOptions()
    o.no_such_option = 1
    return "taken"


@case
def an_option_of_another_type(ort):
    o = ort.SessionOptions()
    o.intra_op_num_threads = "two"
    return "taken"


@case
def a_level_that_is_a_number(ort):
    o = ort.SessionOptions()
    o.graph_optimization_level = 99
    return "taken"


@case
def options_of_another_kind(ort):
    return session(ort, sess_options={"intra_op_num_threads": 1})


@case
def entries(ort):
    o = ort.SessionOptions()
    o.add_session_config_entry("session.set_denormal_as_zero", "1")
    return o.get_session_config_entry("session.set_denormal_as_zero")


@case
def an_unknown_entry(ort):
    return ort.SessionOptions().get_session_config_entry("nothing")


@case
def an_entry_that_is_a_number(ort):
    return ort.SessionOptions().add_session_config_entry("session.set_denormal_as_zero", 1)


@case
def a_size_by_name(ort):
    o = ort.SessionOptions()
    o.add_free_dimension_override_by_name("N", 3)
    s = session(ort, SIZES, sess_options=o)
    return args(s.get_inputs()), s.run(None, {"x": np.ones((3, 2, 3), np.float32), "r": np.array(1, np.float32)})


@case
def another_size_than_the_one_by_name(ort):
    o = ort.SessionOptions()
    o.add_free_dimension_override_by_name("N", 3)
    return session(ort, SIZES, sess_options=o).run(None, {"x": np.ones((2, 2, 3), np.float32), "r": np.array(1, np.float32)})


@case
def initializers_from_outside(ort):
    o = ort.SessionOptions()
    value = ort.OrtValue.ortvalue_from_numpy(np.array([100, 200], np.float32))
    o.add_initializer("w", value)
    return session(ort, WEIGHT, sess_options=o).run(None, {"x": np.ones(2, np.float32)})


@case
def no_profile(ort):
    return session(ort).end_profiling()


@case
def a_profile(ort):
    with tempfile.TemporaryDirectory() as folder:
        o = ort.SessionOptions()
        o.enable_profiling, o.profile_file_prefix = True, os.path.join(folder, "run")
        s = session(ort, sess_options=o)
        s.run(None, {"x": X})
        path = s.end_profiling()
        with open(path, encoding="utf-8") as f:
            return os.path.basename(path).startswith("run"), f.read(1)


@case
def an_optimized_model(ort):
    with tempfile.TemporaryDirectory() as folder:
        o = ort.SessionOptions()
        o.optimized_model_filepath = os.path.join(folder, "out.onnx")
        session(ort, sess_options=o)
        return ort.InferenceSession(o.optimized_model_filepath, providers=["CPUExecutionProvider"]).run(["s"], {"x": X})


@case
def enums(ort):
    level, mode = ort.GraphOptimizationLevel.ORT_ENABLE_ALL, ort.ExecutionMode.ORT_PARALLEL
    return (int(level), level.name, str(level), level == ort.GraphOptimizationLevel(99), mode.value, repr(mode), str(mode), sorted(ort.ExecutionMode.__members__),
            sorted(ort.GraphOptimizationLevel.__members__), hash(level) == hash(ort.GraphOptimizationLevel.ORT_ENABLE_ALL))


@case
def severity_out_of_range(ort):
    return ort.set_default_logger_severity(9)


@case
def versions(ort):
    return type(ort.__version__).__name__, ort.get_version_string() == ort.__version__, ort.__version__.count("."), type(ort.get_build_info()).__name__


@case
def exceptions(ort):
    state = importlib.import_module(ort.__name__ + ".capi.onnxruntime_pybind11_state")
    return {n: [k.__name__ for k in getattr(state, n).__mro__] for n in ("Fail", "InvalidArgument", "NoSuchFile", "InvalidGraph", "InvalidProtobuf", "NotImplemented",
                                                                       "RuntimeException", "EPFail", "NoModel", "EngineError", "ModelLoaded")}
