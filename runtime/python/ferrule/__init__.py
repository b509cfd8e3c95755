"""ferrule fuses the layers of ONNX models by rules that are YAML files, tells why, and runs the models.

    import ferrule
    session = ferrule.Session("model.onnx")
    y = session.run({"x": x})["y"]
    print(session.explain())

`import ferrule.ort as ort` has the interface of onnxruntime."""
from ._library import C as _C
from ._library import Error
from ._program import program
from .session import Answer, Port, Session

__version__: str = _C.ferrule_version().decode()
__all__ = ["Answer", "Error", "Port", "Session", "program", "__version__"]
