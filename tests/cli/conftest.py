"""Fixtures of the tests that go through the command line."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jobs import Job, made_text


@pytest.fixture(scope="session")
def headrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[subprocess.Popen[str]]:
    """Without what this machine's user has in the cache: measured rates would stand where assumed ones are expected."""
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache")),
    }
    with subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", str(Path(__file__).with_name("command_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=Path(__file__).parents[2],
    ) as server:
        yield server
        assert server.stdin is not None
        server.stdin.close()


@pytest.fixture(scope="session")
def new_job(headrace_server: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Job]:
    """A job on 300 made documents: a model of one layer, 20 steps of 32 tokens and 20 of 64."""

    def make(text: str | bytes | None = None, **overrides: Any) -> Job:
        folder = tmp_path_factory.mktemp("job")
        content = made_text(300) if text is None else text
        (folder / "text.txt").write_bytes(content.encode() if isinstance(content, str) else content)
        tree: dict[str, Any] = {
            "run": {"folder": "run", "seed": 3},
            "text": {"input": "text.txt", "held_out": 0.1, "workers": 1, "vocabulary": {"kind": "byte"}},
            "model": {
                "hidden_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "max_position_embeddings": 64,
            },
            "training": {
                "learning_rate": 1e-3,
                "phases": [
                    {"sequence_length": 32, "batch_size": 8, "steps": 20},
                    {"sequence_length": 64, "batch_size": 4, "steps": 20},
                ],
                "input_workers": 0,
                "checkpoint_every": 7,
                "keep": 2,
                "log_every": 1,
            },
            "evaluation": {"examples": 64},
        }
        for path, value in overrides.items():
            section, _, key = path.partition("__")
            if key:
                tree.setdefault(section, {})[key] = value
            else:
                tree[section] = value
        return Job(headrace_server, folder, tree)

    return make
