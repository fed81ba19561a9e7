"""Each operator of a network held on its own: the pinned tinygrad against onnxruntime, node by node."""
