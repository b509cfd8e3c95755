from ferrule.ort import InferenceSession, IOBinding, OrtValue  # pylint: disable=unused-import
