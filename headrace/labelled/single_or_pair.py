"""Token ids of one text or two with the special tokens round them, cut to a length.

[CLS] A [SEP]        [CLS] A [SEP] B [SEP], types 0 and 1        decoders: A [END], A [SEP] B [END]
"""

from collections.abc import Sequence

import numpy as np

from headrace.text.vocabulary import Vocabulary


def join_texts(
    a: Sequence[int], b: Sequence[int] | None, length: int, vocabulary: Vocabulary, decoder: bool = False
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Ids (L,), types (L,) and whether anything was cut: the end of the longer text, token by token, as transformers'
    `longest_first` does."""
    num_special = (1 if decoder else 2) + (b is not None)
    a, b, cut = list(a), None if b is None else list(b), False
    over = len(a) + len(b or ()) + num_special - length
    if over > 0:
        cut = True
        keep_a, keep_b = cut_longest_first(len(a), len(b or ()), over)
        a, b = a[:keep_a], None if b is None else b[:keep_b]
    begin = [] if decoder else [vocabulary.cls_id]
    first = begin + a + [vocabulary.sep_id]
    second = [] if b is None else b + [vocabulary.sep_id]
    types = np.repeat(np.array([0, 1], np.int64), [len(first), len(second)])
    return np.array(first + second, np.int64), types, cut


def cut_longest_first(length_a: int, length_b: int, over: int) -> tuple[int, int]:
    """What stays of each when `over` tokens go one by one, each from the longer text, of equals from the second."""
    for _ in range(over):
        if length_a > length_b:
            length_a -= 1
        else:
            length_b -= 1
    return max(length_a, 0), max(length_b, 0)
