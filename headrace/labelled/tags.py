"""Entities (character spans) and tags of words <-> IOB2 tags of tokens.

text       山田 太郎は 東京へ
entities   [0, 5) person      [6, 8) place
tokens     ▁山田   太郎     は  ▁東京    へ
tags       B-person I-person O  B-place  O
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import InputError
from headrace.labelled.row import Row, field_of, shown
from headrace.labelled.scripts import UNSPACED
from headrace.labelled.spans import Encoded, span_of_tokens, tokens_of_span

IGNORED = -100
"""The label of a position that has none, as torch's cross entropy has it."""

NO_TOKEN, OVERLAP = "entities without a token", "entities that share a token with a longer one"


class Entity(NamedTuple):
    start: int
    stop: int
    type: str


def entities_of(row: Row, text_field: str = "text", entities_field: str = "entities") -> tuple[str, list[Entity]]:
    """The text and its entities, as {"span": [start, stop], "type": ..., "name": the text there, if given}; "start",
    "end" and "label" are understood as well, and the triple [start, stop, type]."""
    text = field_of(row, text_field, "data.fields.text")
    entities = [
        _entity(given, text, f"{row.source}: {entities_field}[{index}]")
        for index, given in enumerate(field_of(row, entities_field, "data.fields.spans", list))
    ]
    return text, entities


def _entity(given: Any, text: str, place: str) -> Entity:
    if isinstance(given, dict):
        span = given.get("span", [given.get("start"), given.get("end", given.get("stop"))])
        values = [*span, given.get("type", given.get("label"))] if isinstance(span, list) else [span]
        name = given.get("name")
    else:
        values, name = given, None
    if not isinstance(values, list) or [type(value) for value in values] != [int, int, str] or not values[2]:
        raise InputError(f'{place} is {shown(given)}; an entity is {{"span": [start, stop], "type": "..."}}.')
    start, stop, kind = values
    if not 0 <= start < stop <= len(text):
        raise InputError(f"{place}: the span [{start}, {stop}) is empty or leaves the text of {len(text)} characters.")
    if name is not None and name != text[start:stop]:
        raise InputError(f"{place}: name is {shown(name)}, but the text has {shown(text[start:stop])} there.")
    return Entity(start, stop, kind)


def tags_of_entities(
    encoded: Encoded, entities: Sequence[Entity], counts: Counter | None = None
) -> tuple[list[str], list[Entity]]:
    """One IOB2 tag a token, and the entities that have them.

    A token has one tag. Where entities want the same token (nested, overlapping, or two inside one token) the longest
    keeps its tokens, of equally long ones the first; the others are left out, and counted."""
    counts = Counter() if counts is None else counts
    tags = ["O"] * len(encoded)
    kept = []
    for entity in sorted(entities, key=lambda entity: (entity.start - entity.stop, entity.start)):
        tokens = tokens_of_span(encoded, entity.start, entity.stop)
        if tokens is None:
            counts[NO_TOKEN] += 1
            continue
        a, b = tokens
        if any(tag != "O" for tag in tags[a:b]):
            counts[OVERLAP] += 1
            continue
        tags[a:b] = [f"B-{entity.type}"] + [f"I-{entity.type}"] * (b - a - 1)
        kept.append(entity)
    return tags, sorted(kept)


def entities_of_tags(raw: str, encoded: Encoded, tags: Sequence[str]) -> list[Entity]:
    """Runs of B- and I- of one type, each from its first to its last token without white space at the edges. An I- that
    goes on with nothing begins an entity, as in transformers' aggregation_strategy="simple"."""
    found = []
    for a, b, kind in runs_of_tags(tags):
        start, stop = span_of_tokens(raw, encoded, a, b)
        if start < stop:
            found.append(Entity(start, stop, kind))
    return found


def runs_of_tags(tags: Sequence[str]) -> list[tuple[int, int, str]]:
    """[a, b) and type of each run."""
    runs: list[tuple[int, int, str]] = []
    for i, tag in enumerate(tags):
        if tag == "O":
            continue
        kind = tag[2:]
        if tag[0] == "I" and runs and runs[-1][1] == i and runs[-1][2] == kind:
            runs[-1] = (runs[-1][0], i + 1, kind)
        else:
            runs.append((i, i + 1, kind))
    return runs


# --- words that are already cut ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Words:
    """The words of a sentence, joined to the text that the tokenizer reads."""

    text: str
    spans: list[tuple[int, int]]


def joined_words(words: Sequence[str]) -> Words:
    """With a space between two words, but none beside a character of a script that writes none."""
    spans, text = [], ""
    for word in words:
        if text and word and not (UNSPACED.match(text[-1]) or UNSPACED.match(word[0])):
            text += " "
        spans.append((len(text), len(text) + len(word)))
        text += word
    return Words(text, spans)


def first_tokens(words: Words, encoded: Encoded) -> np.ndarray:
    """The index of each word's first token, (words,) int64; -1 for a word in which no token begins: the vocabulary drops
    it, or a token of the word before reaches into it."""
    first = np.full(len(words.spans), -1, np.int64)
    word = 0
    for i in range(len(encoded)):
        start, stop = span_of_tokens(words.text, encoded, i, i + 1)
        if start == stop:
            continue
        while word < len(words.spans) and words.spans[word][1] <= start:
            word += 1
        if word < len(words.spans) and words.spans[word][0] <= start and first[word] < 0:
            first[word] = i
    return first


def labels_of_words(words: Words, encoded: Encoded, labels: Sequence[int]) -> np.ndarray:
    """One label a token, (L,) int64: the word's at its first token, IGNORED at the others."""
    first = first_tokens(words, encoded)
    tokens = np.full(len(encoded), IGNORED, np.int64)
    tokens[first[first >= 0]] = np.asarray(labels, np.int64)[first >= 0]
    return tokens


def tags_of_words(words: Words, encoded: Encoded, tags: Sequence[str]) -> list[str]:
    """One tag a word, from one a token: its first token's; inside a token of the word before, that word's going on;
    where the vocabulary drops the word, O."""
    found: list[str] = []
    for (start, stop), first in zip(words.spans, first_tokens(words, encoded), strict=True):
        if first >= 0:
            found.append(tags[int(first)])
        elif (inside := tokens_of_span(encoded, start, stop)) is not None:
            tag = tags[inside[0]]
            found.append("I" + tag[1:] if tag != "O" else tag)
        else:
            found.append("O")
    return found
