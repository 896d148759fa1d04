"""Runs the command: ``python -m kvscatter``."""

import sys

from kvscatter._command import main

if __name__ == "__main__":
    sys.exit(main())
