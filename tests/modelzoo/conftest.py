"""What was printed, for tests of commands."""

import io

import pytest

from headrace.progress import console


@pytest.fixture
def printed(monkeypatch):
    """printed(): what was said since it was last asked."""
    buffer = io.StringIO()
    monkeypatch.setattr(console, "file", buffer)

    def take() -> str:
        text = buffer.getvalue()
        buffer.seek(0)
        buffer.truncate()
        return text

    return take
