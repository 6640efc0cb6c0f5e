"""Which tokens of a record begin a word, for whole-word masking at load."""

import numpy as np
import pytest

from headrace.modelzoo.records.token_rows import TokenRow, TokenRule, token_arrays, word_starts

WORDPIECE = TokenRule({}, 1, 32)
PIECES = TokenRule({}, 1, 32, has_pieces=True)


def words_of(tokens, rule):
    groups = []
    for token, starts in zip(tokens, word_starts(tokens, rule), strict=True):
        if starts:
            groups.append(token)
        else:
            groups[-1] += token
    return groups


def test_wordpieces_go_on_with_marks():
    tokens = ["[CLS]", "un", "##believ", "##able", "story", "[SEP]"]
    assert words_of(tokens, WORDPIECE) == ["[CLS]", "un##believ##able", "story", "[SEP]"]


def test_pieces_begin_words_at_spaces():
    tokens = ["[CLS]", "▁un", "believ", "able", "▁story", "[MASK]", "s", "[SEP]"]
    assert words_of(tokens, PIECES) == ["[CLS]", "▁unbelievable", "▁story", "[MASK]", "s", "[SEP]"]


def test_pieces_of_japanese_follow_its_words():
    pytest.importorskip("fugashi")
    tokens = ["[CLS]", "▁", "東", "京", "は", "日", "本", "の", "首都", "です", "[SEP]"]
    assert words_of(tokens, PIECES) == ["[CLS]", "▁東京", "は", "日本", "の", "首都", "です", "[SEP]"]


def test_words_are_not_looked_for_where_nobody_asks():
    rule = TokenRule({"▁a": 5, "b": 6}, 1, 4, has_pieces=True, find_words=False)
    arrays = token_arrays([TokenRow(["▁a", "b"])], rule)
    assert np.array_equal(arrays["starts_word"], [[1, 1, 0, 0]])
