"""How many worker processes, and what each does first."""

import multiprocessing
import os
import sys
import threading
from multiprocessing.connection import wait


def num_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def end_with_parent() -> None:
    """End this process as soon as its parent is gone: after a kill -9 nobody else would tell it to."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()
