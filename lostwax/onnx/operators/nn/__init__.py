"""How operators of neural networks are written in ONNX."""
