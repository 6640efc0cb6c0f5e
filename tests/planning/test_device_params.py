"""Sizes in the params: what is read, and what is refused."""

import pytest

from headrace.errors import UserError
from headrace.params import DeviceParams, Params, validate_params


def params(**device: object) -> Params:
    training = {"learning_rate": 1e-3, "phases": [{"sequence_length": 32, "batch_size": 8, "steps": 20}]}
    return validate_params({"run": {"folder": "run"}, "text": {"input": "a"}, "training": training, "device": device})


@pytest.mark.parametrize(
    ("given", "expected"),
    [("8GiB", 8 << 30), ("500 MiB", 500 << 20), ("8GB", 8 * 10**9), ("1.5gib", 3 << 29), ("2kB", 2000), (123, 123)],
)
def test_sizes(given, expected):
    assert params(memory=given).device.memory == expected
    assert DeviceParams.model_validate({"memory": expected}).memory == expected  # as a saved params.yaml holds it


@pytest.mark.parametrize("given", ["8G", "eight", "-1GiB", "0GiB", 0, True, "", "1e3"])
def test_no_sizes(given):
    with pytest.raises(UserError, match=r"device\.memory"):
        params(memory=given)
