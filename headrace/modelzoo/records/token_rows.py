"""Records that hold token strings become ids, not masked yet: the columns of the `token` layouts."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headrace.text.vocabulary.words import starts_by_words, word_of_character

PAD_ID = 0
"""Behind the tokens, where input_mask is 0; the batch puts the model's own padding there."""


_SPECIAL = re.compile(r"\[\w+\]|<\w+>|</\w+>")


@dataclass(frozen=True)
class TokenRule:
    """How token strings become ids. MLM-only rows are cut at sequence_length; pairs must fit."""

    ids: Mapping[str, int]
    unk_id: int
    sequence_length: int
    lowercase: bool = False  # of the tokens; the keys of `ids` are then lower case, too
    has_pieces: bool = False  # words begin with ▁, as SentencePiece writes them, instead of going on with ##
    find_words: bool = True  # False: whole words are not asked for, and starts_word says nothing


class TokenRow(NamedTuple):
    """One record: n tokens, and for pairs the segment of each and 1 = a random next text."""

    tokens: Sequence[str]
    segment_ids: Sequence[int] | None = None
    label: int | None = None


def token_arrays(rows: Sequence[TokenRow], rule: TokenRule) -> dict[str, np.ndarray]:
    """The columns of `layouts.TOKEN_PAIRS`, or those of TOKEN_MLM when the rows are no pairs. A token that is not in the
    vocabulary becomes rule.unk_id and is counted in `unknown_tokens`."""
    shape = (len(rows), rule.sequence_length)
    out = {name: np.zeros(shape, np.int64) for name in ("input_mask", "starts_word", "segment_ids")}
    out["input_ids"] = np.full(shape, PAD_ID, np.int64)
    out["unknown_tokens"] = np.zeros((len(rows), 1), np.int64)
    out["next_sentence_labels"] = np.array([[row.label or 0] for row in rows], np.int64).reshape(len(rows), 1)
    for k, row in enumerate(rows):
        tokens = row.tokens[: rule.sequence_length]
        if rule.lowercase:
            tokens = [token.lower() for token in tokens]
        ids = [rule.ids.get(token, -1) for token in tokens]
        n = len(ids)
        out["input_ids"][k, :n] = ids
        out["input_mask"][k, :n] = 1
        out["starts_word"][k, :n] = word_starts(tokens, rule)
        if row.segment_ids is not None:
            out["segment_ids"][k, :n] = row.segment_ids[:n]
    unknown = out["input_ids"] == -1
    out["unknown_tokens"][:, 0] = unknown.sum(1)
    out["input_ids"][unknown] = rule.unk_id
    if any(row.label is None for row in rows):
        del out["segment_ids"], out["next_sentence_labels"]
    return out


def word_starts(tokens: Sequence[str], rule: TokenRule) -> list[bool]:
    """Which tokens begin a word. Of pieces: by MeCab in text with kana or kanji, which has no spaces, else at ▁; special
    tokens stand alone."""
    if not rule.find_words:
        return [True] * len(tokens)
    if not rule.has_pieces:
        return [not token.startswith("##") for token in tokens]
    starts = [True] * len(tokens)
    run: list[int] = []
    for place, token in enumerate((*tokens, "[SEP]")):
        if not _SPECIAL.fullmatch(token):
            run.append(place)
            continue
        if run:
            pieces = [tokens[i].replace("▁", " ") for i in run]
            ends = np.cumsum([len(piece) for piece in pieces])
            offsets = np.stack([ends - [len(piece) for piece in pieces], ends], 1)
            found = starts_by_words(word_of_character("".join(pieces)), offsets)
            for i, is_start in zip(run, found.tolist(), strict=True):
                starts[i] = is_start
        run = []
    return starts
