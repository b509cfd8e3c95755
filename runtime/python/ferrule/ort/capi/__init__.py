"""Where programs look for onnxruntime's exceptions."""
