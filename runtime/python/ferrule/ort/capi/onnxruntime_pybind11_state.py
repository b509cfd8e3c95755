"""Programs import exceptions from here."""
from ferrule.ort._exceptions import (EPFail, EngineError, Fail, InvalidArgument, InvalidGraph, InvalidProtobuf, ModelLoaded, NoModel, NoSuchFile,
                                     NotImplemented, RuntimeException)  # noqa: F401  pylint: disable=unused-import,redefined-builtin
