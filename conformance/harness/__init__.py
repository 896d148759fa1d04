"""Calls kernels and runtimes on the cases. `run.py` is the program."""
