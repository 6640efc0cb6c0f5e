"""The batch encoder gives, byte for byte, what the encoder of single examples gives."""

import numpy as np
import pytest

from headrace.modelzoo.create.example_bytes import example_bytes, varints
from headrace.modelzoo.create.examples import Examples
from headrace.modelzoo.create.masks import Masked
from headrace.modelzoo.records.example import encode_bert_example


@pytest.mark.parametrize("length", [16, 128, 512])
@pytest.mark.parametrize("pairs", [True, False])
def test_bytes_are_those_of_the_encoder_of_single_examples(length, pairs):
    draw = np.random.default_rng(length)
    count, predictions = 40, length // 6
    lengths = draw.integers(3, length + 1, count)
    first = np.array([draw.integers(2, each) for each in lengths])
    column = np.arange(length)
    segments = ((column >= first[:, None]) & (column < lengths[:, None])).astype(np.int32)
    ids = draw.choice([0, 1, 127, 128, 16383, 16384, 2_097_151, 2_097_152, 250_000], (count, length)).astype(np.int32)
    positions = draw.integers(0, length, (count, predictions))
    targets, predicted = draw.integers(0, 32_000, (count, predictions)), draw.integers(0, predictions + 1, count)
    labels = draw.integers(0, 2, count).astype(np.int32)
    masked = Masked(ids, positions, targets, predicted)
    found = list(example_bytes(Examples(ids, lengths, segments, labels, masked), pairs))
    for i in range(count):
        expected = encode_bert_example(
            ids[i].tolist(),
            (column < lengths[i]).astype(int).tolist(),
            positions[i].tolist(),
            targets[i].tolist(),
            (np.arange(predictions) < predicted[i]).astype(np.float32),
            segments[i].tolist() if pairs else None,
            int(labels[i]) if pairs else None,
        )
        assert found[i] == expected


def test_varints_of_every_width():
    values = np.array([[0, 127, 128], [16383, 16384, (1 << 28) - 1]])
    assert [each.hex() for each in varints(values)] == ["007f8001", "ff7f808001ffffff7f"]
