"""Runs, models and sessions."""
import copy
import gc
import io
import os
import pathlib
import pickle
import tempfile
import threading

import numpy as np
import onnx
from common import ADD, SAME, SCALAR, SIZES, STRINGS, TYPES, WEIGHT, X, args, case, described, model, outside, session
from onnx import parser

# --- runs ------------------------------------------------------------------------------------------

@case
def all_outputs(ort):
    return session(ort).run(None, {"x": X})


@case
def an_empty_list_of_outputs(ort):
    return session(ort).run([], {"x": X})


@case
def outputs_in_another_order(ort):
    return session(ort).run(["s", "y"], {"x": X})


@case
def an_output_twice(ort):
    return session(ort).run(["y", "y"], {"x": X})


@case
def a_tuple_of_outputs(ort):
    return session(ort).run(("s",), {"x": X})


@case
def an_unknown_output(ort):
    return session(ort).run(["nothing"], {"x": X})


@case
def a_missing_input(ort):
    return session(ort).run(None, {})


@case
def an_unknown_input(ort):
    return session(ort).run(None, {"x": X, "z": X})


@case
def an_input_that_is_None(ort):
    return session(ort).run(None, {"x": None})


@case
def inputs_that_are_no_dict(ort):
    return session(ort).run(None, [X])


@case
def another_element_type(ort):
    return session(ort).run(None, {"x": X.astype(np.float64)})


@case
def an_integer_for_a_float(ort):
    return session(ort).run(None, {"x": X.astype(np.int64)})


@case
def another_rank(ort):
    return session(ort).run(None, {"x": X[0]})


@case
def another_size(ort):
    return session(ort).run(None, {"x": X[:, :3]})


@case
def sizes_that_contradict(ort):
    return session(ort, SAME).run(None, {"x": np.ones(3, np.float32)})


@case
def lists_of_numbers(ort):
    return session(ort).run(["y"], {"x": X.tolist()})


@case
def lists_for_integers(ort):
    return session(ort, model("g (int64[N] x) => (int64[N] y) { y = Add(x, x) }")).run(None, {"x": [1, 2, 3]})


@case
def python_scalars(ort):
    return session(ort, SCALAR).run(None, {"x": 1.5, "n": 3})


@case
def numpy_scalars(ort):
    return session(ort, SCALAR).run(None, {"x": np.float32(1.5), "n": np.int64(3)})


@case
def arrays_of_rank_0(ort):
    return session(ort, SCALAR).run(None, {"x": np.array(1.5, np.float32), "n": np.array(3)})


@case
def one_element_for_a_scalar(ort):
    return session(ort, SCALAR).run(None, {"x": np.array([1.5], np.float32), "n": np.array([3])})


@case
def element_types(ort):
    two = np.array([1, 0])
    return session(ort, TYPES).run(None, {"h": two.astype(np.float16), "t": two.astype(bool), "i": two, "u": two.astype(np.uint8),
                                          "d": two.astype(np.float64), "c": two.astype(np.int8)})


@case
def int32_for_int64(ort):
    return session(ort, SCALAR).run(None, {"x": np.float32(1), "n": np.int32(3)})


@case
def strings_as_objects(ort):
    return session(ort, STRINGS).run(None, {"x": np.array(["a", "äöü", ""], object)})


@case
def strings_as_numpy_has_them(ort):
    return session(ort, STRINGS).run(None, {"x": np.array(["a", "bcd"])})


@case
def strings_in_a_list(ort):
    return session(ort, STRINGS).run(None, {"x": ["a", "bcd"]})


@case
def fortran_order(ort):
    return session(ort).run(None, {"x": np.asfortranarray(X)})


@case
def strided(ort):
    return session(ort).run(None, {"x": np.repeat(X, 2, axis=1)[:, ::2]})


@case
def backwards(ort):
    return session(ort).run(None, {"x": X[::-1]})


@case
def broadcast(ort):
    return session(ort).run(None, {"x": np.broadcast_to(X[:1], (3, 4))})


@case
def not_aligned(ort):
    return session(ort).run(None, {"x": np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 4)})


@case
def big_endian(ort):
    return session(ort).run(None, {"x": X.astype(">f4")})


@case
def no_rows(ort):
    return session(ort).run(None, {"x": np.empty((0, 4), np.float32)})


@case
def read_only(ort):
    x = X.copy()
    x.flags.writeable = False
    return session(ort).run(None, {"x": x})


@case
def results_are_the_callers(ort):
    s = session(ort, SAME)
    x = np.ones(2, np.float32)
    (y,) = s.run(None, {"x": x})
    before = y.copy()
    x[:] = 9
    s.run(None, {"x": x})
    del s
    gc.collect()
    flags = y.flags.writeable, y.flags.c_contiguous, np.shares_memory(x, y)
    y += 1
    return before, y, flags


@case
def an_ortvalue_among_inputs(ort):
    return session(ort).run(None, {"x": ort.OrtValue.ortvalue_from_numpy(X)})


@case
def an_input_with_a_value_of_its_own(ort):
    s = session(ort, WEIGHT)
    x = np.ones(2, np.float32)
    return (args(s.get_inputs()), args(s.get_overridable_initializers()), s.run(None, {"x": x}), s.run(None, {"x": x, "w": x}))


@case
def run_options(ort):
    o = ort.RunOptions()
    o.log_severity_level, o.log_verbosity_level, o.logid, o.only_execute_path_to_fetches = 3, 0, "mine", True
    o.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return session(ort).run(["y"], {"x": X}, o), session(ort).run(["y"], {"x": X}, run_options=o), o.get_run_config_entry("memory.enable_memory_arena_shrinkage")


@case
def an_unknown_run_entry(ort):
    return ort.RunOptions().get_run_config_entry("nothing")


@case
def terminated(ort):
    o = ort.RunOptions()
    o.terminate = True
    return session(ort).run(None, {"x": X}, o)


@case
def run_options_of_another_type(ort):
    return session(ort).run(None, {"x": X}, {"a": 1})


@case
def asynchronous(ort):
    done, got = threading.Event(), []

    def finished(results, data, error):
        got.append((results, data, error))
        done.set()
    s = session(ort)
    s.run_async(["y"], {"x": X}, finished, "mine")
    assert done.wait(60)
    return got


@case
def asynchronous_all_outputs(ort):
    done, got = threading.Event(), []

    def finished(results, data, error):
        got.append((results, data, error))
        done.set()
    s = session(ort)
    s.run_async(None, {"x": X}, finished, None)
    assert done.wait(60)
    return got


@case
def asynchronous_with_a_missing_input(ort):
    return session(ort).run_async(["y"], {}, print, None)


@case
def ort_values(ort):
    got = session(ort).run_with_ort_values(["s", "y"], {"x": ort.OrtValue.ortvalue_from_numpy(X)})
    return [(type(v).__name__, v.shape(), v.data_type(), v.numpy()) for v in got]


@case
def ort_values_all_outputs(ort):
    return [v.numpy() for v in session(ort).run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(X)})]


@case
def an_array_for_an_ort_value(ort):
    return session(ort).run_with_ort_values(None, {"x": X})


# --- models and sessions -----------------------------------------------------------------------------

@case
def a_path(ort):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "mödel.onnx")
        path.write_bytes(ADD)
        return session(ort, str(path)).run(["y"], {"x": X}), session(ort, path).run(["y"], {"x": X})


@case
def a_bytearray(ort):
    return session(ort, bytearray(ADD))


@case
def a_file(ort):
    return session(ort, io.BytesIO(ADD))


@case
def a_model_proto(ort):
    return session(ort, onnx.load_from_string(ADD))


@case
def no_such_file(ort):
    return session(ort, "/nowhere/model.onnx")


@case
def a_folder(ort):
    return session(ort, "/tmp")


@case
def no_bytes(ort):
    return session(ort, b"")


@case
def no_model(ort):
    return session(ort, b"no model")


@case
def half_a_model(ort):
    return session(ort, ADD[:len(ADD) // 2])


@case
def an_empty_file(ort):
    with tempfile.NamedTemporaryFile(suffix=".onnx") as f:
        return session(ort, f.name)


@case
def an_unknown_operator(ort):
    return session(ort, model("g (float[2] x) => (float[2] y) { y = Nothing(x) }"))


@case
def an_unknown_domain(ort):
    return session(ort, parser.parse_model('<ir_version: 8, opset_import: ["": 17, "org.example": 1]> g (float[2] x) => (float[2] y) { y = org.example.Mine(x) }')
                   .SerializeToString())


@case
def a_value_that_nothing_makes(ort):
    return session(ort, model("g (float[2] x) => (float[2] y) { y = Add(x, z) }"))


@case
def types_that_do_not_fit(ort):
    return session(ort, model("g (float[2] x, int64[2] i) => (float[2] y) { y = Add(x, i) }"))


@case
def an_opset_of_the_future(ort):
    return session(ort, model("g (float[2] x) => (float[2] y) { y = Relu(x) }", opset=99))


@case
def weights_in_another_file(ort):
    with tempfile.TemporaryDirectory() as folder:
        return session(ort, outside(pathlib.Path(folder))).run(None, {"x": X})


@case
def weights_in_a_file_that_is_gone(ort):
    with tempfile.TemporaryDirectory() as folder:
        path = outside(pathlib.Path(folder))
        os.remove(os.path.join(folder, "weights.bin"))
        return session(ort, path)


@case
def args_of_ports(ort):
    return [args(s.get_inputs()) + args(s.get_outputs()) for s in map(lambda m: session(ort, m), (ADD, TYPES, SCALAR, STRINGS, SIZES))]


@case
def metadata(ort):
    m = session(ort, described()).get_modelmeta()
    return m.producer_name, m.graph_name, m.domain, m.description, m.graph_description, m.version, dict(m.custom_metadata_map)


@case
def metadata_that_is_not_there(ort):
    m = session(ort, SAME).get_modelmeta()
    return m.producer_name, m.graph_name, m.domain, m.description, m.graph_description, m.version, dict(m.custom_metadata_map)


@case
def nothing_given(ort):
    return ort.InferenceSession()


@case
def copied(ort):
    return copy.deepcopy(session(ort)).run(None, {"x": X})


@case
def pickled(ort):
    return pickle.loads(pickle.dumps(session(ort))).run(None, {"x": X})


@case
def keywords_of_other_versions(ort):
    return session(ort, enable_fallback=0, read_config_from_model=0, disabled_optimizers=[]).run(["s"], {"x": X})


@case
def fallback(ort):
    s = session(ort)
    return s.disable_fallback(), s.enable_fallback(), s.run(["s"], {"x": X})
