"""The csv module refuses fields over a limit that is the whole process's."""

import csv
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def csv_fields_up_to(num_characters: int) -> Iterator[None]:
    """Within it, fields may have so many characters; then the limit is what it was."""
    before = csv.field_size_limit()
    csv.field_size_limit(max(before, num_characters))
    try:
        yield
    finally:
        csv.field_size_limit(before)
