import pathlib
import sys
from importlib.util import find_spec

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

collect_ignore = [] if find_spec("torch") else ["test_one_case.py", "test_measure.py"]
