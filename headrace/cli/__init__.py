"""The command line. Errors of the user's making end in one message and exit code 2, never in a traceback."""

import os
import sys


def main() -> None:
    """Entry point of the `headrace` command."""
    # Nothing here talks to a model hub; transformers should not try either.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from headrace.cli.commands import app
    from headrace.errors import UserError

    try:
        app()
    except UserError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(2)
