"""Examples -> the bytes of their records: TFRecord frames, or lines of CSV."""

import csv
import io
from collections.abc import Iterator

import numpy as np

from headrace.modelzoo.create.example_bytes import example_bytes
from headrace.modelzoo.create.examples import Examples
from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.records.example import encode_tokens_example
from headrace.modelzoo.records.tfrecord import frame
from headrace.text.vocabulary import Vocabulary


def csv_columns(settings: Settings) -> list[str]:
    """Of the script that the form stands for."""
    if settings.masks:
        pair = ["token_type_ids", "next_sentence_label"] if settings.pairs else []
        return ["input_ids", *pair, "masked_lm_weights", "masked_lm_positions", "attention_mask", "labels"]
    return ["tokens", "segment_ids", "is_random_next"] if settings.pairs else ["tokens"]


def csv_header(settings: Settings) -> bytes:
    return _csv_line(csv_columns(settings))


def records(examples: Examples, settings: Settings, vocabulary: Vocabulary) -> Iterator[bytes]:
    """One bytes an example, as it stands in the file."""
    if not settings.masks:
        for tokens, segments, label in _unmasked(examples, vocabulary):
            if not settings.is_csv:
                yield frame(encode_tokens_example(tokens))
            else:
                yield _csv_line([tokens, segments, label] if settings.pairs else [tokens])
        return
    if not settings.is_csv:
        yield from map(frame, example_bytes(examples, settings.pairs))
        return
    for row in _masked(examples):
        input_ids, input_mask, positions, masked_ids, weights, segments, label = row
        pair = [segments, label] if settings.pairs else []
        yield _csv_line([input_ids, *pair, weights, positions, input_mask, masked_ids])


def _unmasked(examples: Examples, vocabulary: Vocabulary) -> Iterator[tuple[list[str], list[int], int]]:
    rows = zip(
        examples.ids.tolist(),
        examples.segment_ids.tolist(),
        examples.lengths.tolist(),
        examples.labels.tolist(),
        strict=True,
    )
    for ids, segments, length, label in rows:
        yield [vocabulary.token_text(i) for i in ids[:length]], segments[:length], label


def _masked(
    examples: Examples,
) -> Iterator[tuple[list[int], list[int], list[int], list[int], list[float], list[int], int]]:
    masked = examples.masked
    assert masked is not None
    length, predictions = masked.input_ids.shape[1], masked.positions.shape[1]
    return zip(
        masked.input_ids.tolist(),
        (np.arange(length) < examples.lengths[:, None]).astype(np.int32).tolist(),
        masked.positions.tolist(),
        masked.ids.tolist(),
        (np.arange(predictions) < masked.count[:, None]).astype(np.float32).tolist(),
        examples.segment_ids.tolist(),
        examples.labels.tolist(),
        strict=True,
    )


def _csv_line(cells: list) -> bytes:
    """Lists are written as Python writes them."""
    text = io.StringIO(newline="")
    csv.writer(text).writerow(cells)
    return text.getvalue().encode()
