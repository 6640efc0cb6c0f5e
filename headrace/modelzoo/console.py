"""What the Model Zoo's commands do with errors of the user's making: one message, exit code 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.errors import UserError


@contextmanager
def told_plainly(program: str) -> Iterator[None]:
    """UserError and OSError within it end the program with a message on standard error. program: its name."""
    try:
        yield
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"{program}: {where}{error.strerror}; put that right, then run the same command again: what is done stays done",
            file=sys.stderr,
        )
        sys.exit(2)
