"""Helpers of the tests: the command, decoders in ONNX Runtime, their runs, and faults to plant."""
