"""The exceptions of onnxruntime. In onnxruntime they have no common class but Exception."""



class Fail(RuntimeError):
    pass


class InvalidArgument(Fail):
    pass


class NoSuchFile(Fail):
    pass


class NoModel(Fail):
    pass


class EngineError(Fail):
    pass


class RuntimeException(Fail):
    pass


class InvalidProtobuf(Fail):
    pass


class ModelLoaded(Fail):
    pass


class NotImplemented(Fail):  # pylint: disable=redefined-builtin
    pass


class InvalidGraph(Fail):
    pass


class EPFail(Fail):
    pass
