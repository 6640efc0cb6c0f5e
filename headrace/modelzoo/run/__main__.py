"""`python -m headrace.modelzoo.run`, and the command `headrace-run`."""

from headrace.modelzoo.run.command import main

if __name__ == "__main__":
    main()
