"""How long the threads of this process have run, by the kernel's own clock."""

import pathlib
import threading


def thread_time() -> int:
    """Returns the nanoseconds for which this thread has run."""
    return _time(pathlib.Path("/proc/thread-self"))


def time_of_others() -> int:
    """Returns the nanoseconds for which all threads except this one have run."""
    tasks = pathlib.Path("/proc/self/task").iterdir()
    return sum(_time(task) for task in tasks if task.name != str(threading.get_native_id()))


def _time(task: pathlib.Path) -> int:
    return int((task / "schedstat").read_text().split()[0])
