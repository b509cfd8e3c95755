"""The exceptions of onnxruntime, which have no common class but Exception."""


class Fail(Exception):
    pass


class InvalidArgument(Exception):
    pass


class NoSuchFile(Exception):
    pass


class NoModel(Exception):
    pass


class EngineError(Exception):
    pass


class RuntimeException(Exception):
    pass


class InvalidProtobuf(Exception):
    pass


class ModelLoaded(Exception):
    pass


class NotImplemented(Exception):  # pylint: disable=redefined-builtin
    pass


class InvalidGraph(Exception):
    pass


class EPFail(Exception):
    pass
