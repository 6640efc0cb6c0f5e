"""The command line: errors of the user's making end in one message and exit code 2."""

import os
import sys

PROGRAM = "headrace-run"


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command."""
    # As the `headrace` command does, and before torch is imported.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    from headrace.modelzoo.console import told_plainly
    from headrace.modelzoo.run.flags import parse

    with told_plainly(PROGRAM):
        request = parse(sys.argv[1:] if arguments is None else arguments)
        from headrace.modelzoo.run.modes import run
        from headrace.progress import say
        from headrace.training.loop import Stopped

        try:
            run(request)
        except Stopped as stopped:
            say(str(stopped))
            sys.exit(130)
