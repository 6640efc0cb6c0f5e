"""BERT's loop as it is usually written: one process, everything in memory, one token after the other. What
headrace-create-tfrecords is measured against, for its statistics and its speed."""

import random
from collections.abc import Sequence

Document = list[list[int]]


def instances_of(
    documents: Sequence[Document],
    number: int,
    draw: random.Random,
    *,
    length: int = 128,
    short: float = 0.1,
    rate: float = 0.15,
    predictions: int = 20,
    special: tuple[int, int, int] = (2, 3, 4),
    vocabulary_size: int = 100,
) -> list[dict[str, list]]:
    """special: ids of [CLS], [SEP], [MASK]."""
    room, document, made = length - 3, documents[number], []
    target = draw.randint(2, room) if draw.random() < short else room
    chunk: Document = []
    size = i = 0
    while i < len(document):
        chunk.append(document[i])
        size += len(document[i])
        if i == len(document) - 1 or size >= target:
            end = draw.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:end] for token in sentence]
            b: list[int] = []
            label = int(len(chunk) == 1 or draw.random() < 0.5)
            if label:
                for _ in range(10):
                    other = draw.randint(0, len(documents) - 1)
                    if other != number:
                        break
                for sentence in documents[other][draw.randint(0, len(documents[other]) - 1) :]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - end
            else:
                b = [token for sentence in chunk[end:] for token in sentence]
            while len(a) + len(b) > room:
                longer = a if len(a) > len(b) else b
                longer.pop(0 if draw.random() < 0.5 else -1)
            made.append(_masked(a, b, label, draw, rate, predictions, length, special, vocabulary_size))
            chunk, size = [], 0
        i += 1
    return made


def _masked(a, b, label, draw, rate, predictions, length, special, vocabulary_size) -> dict[str, list]:
    cls, sep, hidden = special
    ids = [cls, *a, sep, *b, sep]
    candidates = [i for i, token in enumerate(ids) if token not in (cls, sep)]
    draw.shuffle(candidates)
    positions = sorted(candidates[: min(predictions, max(1, round(len(ids) * rate)))])
    targets = [ids[i] for i in positions]
    for i in positions:
        if draw.random() < 0.8:
            ids[i] = hidden
        elif draw.random() >= 0.5:
            ids[i] = draw.randint(0, vocabulary_size - 1)
    pad, unused = [0] * (length - len(ids)), [0] * (predictions - len(positions))
    return {
        "input_ids": ids + pad,
        "input_mask": [1] * len(ids) + pad,
        "segment_ids": [0] * (len(a) + 2) + [1] * (len(b) + 1) + pad,
        "masked_lm_positions": positions + unused,
        "masked_lm_ids": targets + unused,
        "masked_lm_weights": [1.0] * len(positions) + [0.0] * len(unused),
        "next_sentence_labels": [label],
    }
