"""The command ``kvscatter``, which is in the compiled module of this package."""

from __future__ import annotations

import signal
import sys

from kvscatter import _native

EVALUATE_TEMPLATE = "import ctypes, sys; sys.exit(ctypes.CDLL(sys.argv[1]).kvscatter_evaluate_template())"


def main() -> int:
    """Runs the command with the arguments of this process, and returns its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # The command handles Ctrl-C itself, and its handler also calls an earlier one.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # A template may take little memory, so packages that need more are not imported in its process.
    evaluator = [sys.executable, "-I", "-S", "-c", EVALUATE_TEMPLATE, _native.__file__]
    return _native.run_command(["kvscatter", *sys.argv[1:]], evaluator)
