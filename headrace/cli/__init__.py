"""The command line. Errors of the user's making end in one message and exit code 2, never in a traceback."""

import errno
import os
import sys

# What the machine, not the program, is to blame for.
MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def main() -> None:
    """Entry point of the `headrace` command."""
    # Nothing here talks to a model hub; transformers should not try either.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # Threads that wait by spinning for long (300,000 rounds by default) make training ten times slower as soon as
    # another process wants their core; 3,000 rounds cost little on a quiet machine.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    from headrace.cli.commands import app
    from headrace.errors import UserError

    try:
        app()
    except UserError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if error.errno not in MACHINE_ERRORS:
            raise
        where = f"{error.filename}: " if error.filename else ""
        print(
            f"headrace: {where}{error.strerror}; put that right, then run the same command again: what is done stays done",
            file=sys.stderr,
        )
        sys.exit(2)
