from ferrule.ort import InferenceSession, IOBinding, OrtValue

__all__ = ["InferenceSession", "IOBinding", "OrtValue"]
