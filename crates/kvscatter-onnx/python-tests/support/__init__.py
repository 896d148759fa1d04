"""What the tests share: the command, decoders in ONNX Runtime, runs of them, and faults to plant."""
