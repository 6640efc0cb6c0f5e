"""Texts -> tokens that know their raw characters; spans of characters <-> ranges of tokens.

raw text -> normalisation, aligned -> Rust tokenizer without it -> (start, stop) in the normalised text -> in the raw
"""

import json
import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, models

from headrace.labelled.alignment import Alignment, Step
from headrace.text.vocabulary import Vocabulary

_BLANK_TOKENS = ("▁", "Ġ")


@dataclass(frozen=True)
class Encoded:
    """One text without special tokens. Token i came from raw[starts[i]:stops[i]]; several tokens of one raw character
    share its span, and a token that stands for no raw character (the ▁ put before a sentence) has an empty one."""

    ids: np.ndarray  # (L,) int64
    starts: np.ndarray  # (L,) int64
    stops: np.ndarray  # (L,) int64
    words: np.ndarray | None = None  # (L,) int64: which word of the pre-tokenizer (MeCab's, BERT's) each is part of

    def __len__(self) -> int:
        return len(self.ids)


class Unmappable(NamedTuple):
    source: str
    span: tuple[int, int]
    why: str


def encode_with_offsets(vocabulary: Vocabulary, texts: list[str]) -> list[Encoded]:
    """The ids are those of `vocabulary.encode_batch(texts)`."""
    return OffsetEncoder(vocabulary).encode(texts)


class OffsetEncoder:
    """A vocabulary taken apart: its normalisation as steps, and its tokenizer without them."""

    def __init__(self, vocabulary: Vocabulary):
        self.vocabulary = vocabulary
        if vocabulary.kind == "bins" or vocabulary.shared_characters:
            return
        if vocabulary.kind == "wordpiece_mecab":
            self._alignment, self._tokenizer = Alignment(vocabulary.mecab_steps), vocabulary.backend
            return
        data = json.loads(vocabulary.backend.to_str())
        self._alignment = Alignment([_step(step) for step in _flat(data["normalizer"])])
        for token in data["added_tokens"]:
            if token["normalized"] and not token["special"] and data["normalizer"] is not None:
                token["content"] = vocabulary.backend.normalizer.normalize_str(token["content"])
        self._tokenizer = Tokenizer.from_str(json.dumps(data | {"normalizer": None}))
        self._tokenizer.encode_special_tokens = vocabulary.backend.encode_special_tokens

    def encode(self, texts: list[str]) -> list[Encoded]:
        ids = self.vocabulary.encode_batch(texts)
        if self.vocabulary.kind == "bins" or self.vocabulary.shared_characters:
            of = _numbers if self.vocabulary.kind == "bins" else _bases
            return [of(text, np.array(each, np.int64)) for text, each in zip(texts, ids, strict=True)]
        aligned = [self._alignment.align(text) for text in texts]
        encodings = self._tokenizer.encode_batch([each.text for each in aligned], add_special_tokens=False)
        encoded = []
        for text, expected, each, encoding in zip(texts, ids, aligned, encodings, strict=True):
            if encoding.ids != expected:
                # Added tokens cut the text before normalisation: the Rust side's own offsets then.
                encoding = self.vocabulary.backend.encode(text, add_special_tokens=False)
                assert encoding.ids == expected, f"two encodings of one text differ: {text!r}"
                spans = encoding.offsets
            else:
                spans = [_raw_span(each.starts, each.stops, start, stop) for start, stop in encoding.offsets]
            starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
            for i in np.flatnonzero(np.isin(encoding.tokens, _BLANK_TOKENS)):
                if not all(c.isspace() or c in _BLANK_TOKENS for c in text[starts[i] : stops[i]]):
                    stops[i] = starts[i]  # put in by the pre-tokenizer
            words = np.array([-1 if word is None else word for word in encoding.word_ids], np.int64)
            encoded.append(Encoded(np.array(expected, np.int64), starts, stops, words))
        return encoded


def _numbers(text: str, ids: np.ndarray) -> Encoded:
    spans = [found.span() for found in re.finditer(r"\S+", text)]
    starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
    return Encoded(ids, starts, stops, np.arange(len(ids)))


def _bases(text: str, ids: np.ndarray) -> Encoded:
    """Of overlapping k-mers each counts for its first base, and the last for the rest."""
    starts = np.arange(len(ids))
    stops = starts + 1
    stops[-1:] = len(text)
    return Encoded(ids, starts, stops, np.zeros(len(ids), np.int64))


def _raw_span(starts: list[int], stops: list[int], start: int, stop: int) -> tuple[int, int]:
    if start < stop:
        return starts[start], stops[stop - 1]
    at = starts[start] if start < len(starts) else stops[-1] if stops else 0
    return at, at


def _flat(normalizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if normalizer is None:
        return []
    if normalizer["type"] == "Sequence":
        return [step for part in normalizer["normalizers"] for step in _flat(part)]
    return [normalizer]


def _step(normalizer: dict[str, Any]) -> Step:
    """One step of a tokenizer.json as a function."""
    data = json.loads(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str())
    return Tokenizer.from_str(json.dumps(data | {"normalizer": normalizer})).normalizer.normalize_str


# --- spans ------------------------------------------------------------------------------------------------------------


def tokens_of_span(encoded: Encoded, start: int, stop: int) -> tuple[int, int] | None:
    """The smallest range [a, b) of tokens that holds every token with a character of raw[start:stop]; None when there is
    none. Characters that no token covers, such as white space that the vocabulary drops, don't count."""
    inside = np.flatnonzero((encoded.starts < stop) & (encoded.stops > start) & (encoded.starts < encoded.stops))
    return (int(inside[0]), int(inside[-1]) + 1) if len(inside) and start < stop else None


def span_of_tokens(raw: str, encoded: Encoded, a: int, b: int) -> tuple[int, int]:
    """[start, stop) of the raw text of tokens [a, b), without the white space that tokens carry at its edges."""
    if a >= b:
        return 0, 0
    start, stop = int(encoded.starts[a]), int(encoded.stops[b - 1])
    while start < stop and raw[start].isspace():
        start += 1
    while start < stop and raw[stop - 1].isspace():
        stop -= 1
    return start, stop


def text_of_tokens(raw: str, encoded: Encoded, a: int, b: int) -> str:
    start, stop = span_of_tokens(raw, encoded, a, b)
    return raw[start:stop]


def unmappable(raw: str, encoded: Encoded, spans: list[tuple[int, int]], source: str = "") -> list[Unmappable]:
    """The spans whose tokens don't give exactly their text back, and why."""
    found = []
    for start, stop in spans:
        why = _why_unmappable(raw, encoded, start, stop)
        if why is not None:
            found.append(Unmappable(source, (start, stop), why))
    return found


def _why_unmappable(raw: str, encoded: Encoded, start: int, stop: int) -> str | None:
    if not 0 <= start < stop <= len(raw):
        return f"it is empty or leaves the text of {len(raw)} characters"
    text = raw[start:stop]
    tokens = tokens_of_span(encoded, start, stop)
    if tokens is None:
        return f"no token covers {text!r}"
    found = span_of_tokens(raw, encoded, *tokens)
    if found == (start, stop):
        return None
    if text != text.strip():
        return f"{text!r} begins or ends with white space, which tokens lose"
    if found[0] >= start and found[1] <= stop:
        return f"the vocabulary drops {raw[start : found[0]] + raw[found[1] : stop]!r} at the edge of {text!r}"
    return f"its tokens also cover {raw[found[0] : start]!r} before and {raw[stop : found[1]]!r} behind {text!r}"
