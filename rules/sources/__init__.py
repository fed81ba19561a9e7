"""Where ONNX files come from: one module per kind of source."""
