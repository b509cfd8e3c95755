"""OrtValue and IOBinding."""
import numpy as np
import onnx
import onnxruntime
from common import ADD, X, case, session

# --- OrtValue ----------------------------------------------------------------------------------------

@case
def of_an_array(ort):
    v = ort.OrtValue.ortvalue_from_numpy(X)
    return (v.shape(), v.data_type(), v.element_type(), v.device_name(), v.is_tensor(), v.has_value(), v.is_sparse_tensor(), v.is_tensor_sequence(),
            v.tensor_size_in_bytes(), v.numpy())


@case
def of_an_array_without_a_copy(ort):
    x = X.copy()
    v = ort.OrtValue.ortvalue_from_numpy(x)
    x[0, 0] = 77
    return v.numpy()[0, 0], v.data_ptr() == x.ctypes.data


@case
def of_an_array_in_fortran_order(ort):
    return ort.OrtValue.ortvalue_from_numpy(np.asfortranarray(X)).numpy()


@case
def of_strings(ort):
    v = ort.OrtValue.ortvalue_from_numpy(np.array(["a", "bc"], object))
    return v.data_type(), v.shape(), v.numpy()


@case
def of_half_floats(ort):
    v = ort.OrtValue.ortvalue_from_numpy(X.astype(np.float16))
    return v.data_type(), v.element_type(), v.numpy()


@case
def of_a_scalar(ort):
    v = ort.OrtValue.ortvalue_from_numpy(np.array(2, np.int64))
    return v.shape(), v.numpy()


@case
def of_a_list(ort):
    return ort.OrtValue.ortvalue_from_numpy([1.0, 2.0])


@case
def of_a_shape(ort):
    v, w = (ort.OrtValue.ortvalue_from_shape_and_type([2, 3], kind, "cpu", 0) for kind in (np.float32, onnx.TensorProto.BFLOAT16))
    return v.shape(), v.data_type(), w.shape(), w.data_type(), w.element_type(), w.tensor_size_in_bytes()


@case
def of_bfloat16(ort):
    v = ort.OrtValue.ortvalue_from_numpy_with_onnx_type(np.array([0x3f80, 0x4000], np.uint16), onnx.TensorProto.BFLOAT16)
    return v.data_type(), v.element_type(), v.shape()


@case
def on_a_device_that_is_not_there(ort):
    return ort.OrtValue.ortvalue_from_numpy(X, "cuda", 0).device_name()


@case
def on_a_device_that_is_none(ort):
    return ort.OrtValue.ortvalue_from_numpy(X, "nothing", 0).device_name()


@case
def updated_in_place(ort):
    v = ort.OrtValue.ortvalue_from_shape_and_type([3, 4], np.float32)
    v.update_inplace(X)
    return v.numpy()


@case
def updated_by_another_shape(ort):
    return ort.OrtValue.ortvalue_from_shape_and_type([3, 4], np.float32).update_inplace(X[:2])


@case
def updated_by_another_type(ort):
    return ort.OrtValue.ortvalue_from_shape_and_type([3, 4], np.float32).update_inplace(X.astype(np.float64))


@case
def through_dlpack(ort):
    v = ort.OrtValue.ortvalue_from_numpy(X)
    return np.from_dlpack(v._ortvalue if ort is onnxruntime else v), ort.OrtValue.from_dlpack(X).numpy()


# --- IOBinding ---------------------------------------------------------------------------------------

def bound(ort, data=ADD):
    s = session(ort, data)
    return s, s.io_binding()


@case
def bound_arrays(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", X)
    b.bind_output("s")
    b.bind_output("y", "cpu")
    s.run_with_iobinding(b)
    return b.copy_outputs_to_cpu(), [(v.shape(), v.data_type(), v.device_name()) for v in b.get_outputs()]


@case
def bound_again(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", X)
    b.bind_output("y")
    s.run_with_iobinding(b)
    first = b.copy_outputs_to_cpu()
    b.bind_cpu_input("x", X[:2])
    s.run_with_iobinding(b)
    return first, b.copy_outputs_to_cpu()


@case
def bound_memory(ort):
    s, b = bound(ort)
    y = np.zeros((3, 4), np.float32)
    b.bind_input("x", "cpu", 0, np.float32, X.shape, X.ctypes.data)
    b.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    s.run_with_iobinding(b, ort.RunOptions())
    b.synchronize_inputs(), b.synchronize_outputs()
    return y, b.copy_outputs_to_cpu()


@case
def bound_by_the_number_of_a_type(ort):
    s, b = bound(ort)
    y = np.zeros((3, 4), np.float32)
    b.bind_input("x", "cpu", 0, onnx.TensorProto.FLOAT, [3, 4], X.ctypes.data)
    b.bind_output("y", "cpu", 0, onnx.TensorProto.FLOAT, [3, 4], y.ctypes.data)
    s.run_with_iobinding(b)
    return y


@case
def bound_memory_without_a_shape(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", X)
    return b.bind_output("y", "cpu", 0, buffer_ptr=X.ctypes.data)


@case
def bound_memory_of_another_shape(ort):
    s, b = bound(ort)
    y = np.zeros((2, 4), np.float32)
    b.bind_cpu_input("x", X)
    b.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    s.run_with_iobinding(b)
    return "ran"


@case
def bound_ort_values(ort):
    s, b = bound(ort)
    y = ort.OrtValue.ortvalue_from_shape_and_type([3, 4], np.float32)
    b.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(X))
    b.bind_ortvalue_output("y", y)
    s.run_with_iobinding(b)
    return y.numpy(), len(b.get_outputs()), len(b.get_outputs_as_ortvaluevector())


@case
def an_unknown_input_bound(ort):
    s, b = bound(ort)
    return b.bind_cpu_input("z", X)


@case
def an_unknown_output_bound(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", X)
    b.bind_output("z")
    s.run_with_iobinding(b)
    return "ran"


@case
def an_input_of_another_type_bound(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", X.astype(np.float64))
    b.bind_output("y")
    s.run_with_iobinding(b)
    return "ran"


@case
def no_input_bound(ort):
    s, b = bound(ort)
    b.bind_output("y")
    s.run_with_iobinding(b)
    return "ran"


@case
def no_output_bound(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", X)
    s.run_with_iobinding(b)
    return b.copy_outputs_to_cpu(), len(b.get_outputs())


@case
def a_binding_of_another_session(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", X)
    b.bind_output("y")
    session(ort).run_with_iobinding(b)
    return "ran"


@case
def bindings_cleared(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", X)
    b.bind_output("y")
    s.run_with_iobinding(b)
    b.clear_binding_outputs()
    b.bind_output("s")
    s.run_with_iobinding(b)
    b.clear_binding_inputs()
    return b.copy_outputs_to_cpu()


@case
def bound_in_fortran_order(ort):
    s, b = bound(ort)
    b.bind_cpu_input("x", np.asfortranarray(X))
    b.bind_output("y")
    s.run_with_iobinding(b)
    return b.copy_outputs_to_cpu()


@case
def a_binding_made_by_its_class(ort):
    s = session(ort)
    b = ort.IOBinding(s)
    b.bind_cpu_input("x", X)
    b.bind_output("y")
    s.run_with_iobinding(b)
    return b.copy_outputs_to_cpu()
