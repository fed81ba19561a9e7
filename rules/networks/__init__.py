"""What an ONNX file holds, read without loading a weight."""
