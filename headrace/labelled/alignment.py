"""A text through normalisation, every character of the result with the raw characters it came from.

    raw        ｶ  ﾞ  (U+3000)  ㍿
    NFKC       ガ    (U+0020)  株 式 会 社
    from       0-2   2-3       3-4 3-4 3-4 3-4

The tokenizers library keeps such offsets too, but a composed character points to the first of its parts only, and an
inserted one to its neighbour; so here each step is laid beside its input anew.
"""

import difflib
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

Step = Callable[[str], str]

_MEMO_CHARACTERS = 8


@dataclass(frozen=True)
class Aligned:
    """`text[i]` came from raw[starts[i]:stops[i]], which is empty where a step put it in. Both never decrease."""

    text: str
    starts: list[int]
    stops: list[int]


class Alignment:
    """Steps that each turn a text into a text, and what they do to single clusters, which repeat."""

    def __init__(self, steps: Sequence[Step]):
        self._steps = [(step, {}) for step in steps]

    def align(self, raw: str) -> Aligned:
        aligned = Aligned(raw, list(range(len(raw))), list(range(1, len(raw) + 1)))
        for step, memo in self._steps:
            after = step(aligned.text)
            if after != aligned.text:
                aligned = _composed(aligned, after, _laid_beside(aligned.text, after, step, memo))
        return aligned


_Spans = list[tuple[int, int]]  # one a character of the text after a step, into the text before it


def _composed(before: Aligned, text: str, spans: _Spans) -> Aligned:
    starts, stops = [], []
    for start, stop in spans:
        if start < stop:
            starts.append(before.starts[start])
            stops.append(before.stops[stop - 1])
        else:
            at = before.starts[start] if start < len(before.text) else before.stops[-1] if before.stops else 0
            starts.append(at)
            stops.append(at)
    return Aligned(text, starts, stops)


def _laid_beside(before: str, after: str, step: Step, memo: dict) -> _Spans:
    return (
        _but_for_blanks(before, after, " ")
        or _but_for_blanks(before, after, " ▁")
        or _by_clusters(before, after, step, memo)
        or _by_difference(before, after)
    )


def _but_for_blanks(before: str, after: str, blanks: str) -> _Spans | None:
    """For steps that only drop white space, turn it into `blanks` or put these in; None for others."""
    spans, i = [], 0
    for character in after:
        while i < len(before) and before[i] != character and before[i].isspace() and character not in blanks:
            i += 1
        if i < len(before) and (before[i] == character or (character in blanks and before[i].isspace())):
            spans.append((i, i + 1))
            i += 1
        elif character in blanks:
            spans.append((i, i))
        else:
            return None
    rest = before[i:].strip()
    return spans if not rest or rest[0] == "\0" else None  # NUL ends a text for MeCab


def _by_clusters(before: str, after: str, step: Step, memo: dict) -> _Spans | None:
    """For steps that change each character with its combining ones, whatever stands around; None for others."""
    spans, parts = [], []
    for start, stop in clusters(before):
        cluster = before[start:stop]
        found = memo.get(cluster)
        if found is None:
            found = _of_cluster(cluster, step)
            if len(cluster) <= _MEMO_CHARACTERS:
                memo[cluster] = found
        part, local = found
        parts.append(part)
        spans += [(start + a, start + b) for a, b in local]
    # A final sigma, which looks around, changes no length.
    return spans if len(spans) == len(after) and _nearly("".join(parts), after) else None


def _nearly(text: str, other: str) -> bool:
    return text == other or sum(a != b for a, b in zip(text, other, strict=True)) * 8 <= len(text)


def _of_cluster(cluster: str, step: Step) -> tuple[str, _Spans]:
    """Character by character where that gives the same, and drops none; else all of it from all of it."""
    whole = step(cluster)
    if len(cluster) > 1:
        parts = [step(character) for character in cluster]
        if all(parts) and "".join(parts) == whole:
            return whole, [(i, i + 1) for i, part in enumerate(parts) for _ in part]
    return whole, [(0, len(cluster))] * len(whole)


def _by_difference(before: str, after: str) -> _Spans:
    """For any step: equal runs beside each other, a changed run from the whole run it replaces."""
    spans = []
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, start, stop, from_, to in matcher.get_opcodes():
        if kind == "equal":
            spans += [(start + i, start + i + 1) for i in range(to - from_)]
        else:
            spans += [(start, stop)] * (to - from_)
    return spans


def clusters(text: str) -> Iterator[tuple[int, int]]:
    """[start, stop) of each character with those after it that may combine with it."""
    start = 0
    for i in range(1, len(text)):
        if not text[i].isascii() and _attaches(text[i]):
            continue
        yield start, i
        start = i
    if text:
        yield start, len(text)


@lru_cache(maxsize=1 << 16)
def _attaches(character: str) -> bool:
    first = unicodedata.normalize("NFKD", character)[0]  # half-width ﾞ is U+3099, which combines
    return (
        unicodedata.category(character).startswith("M")
        or unicodedata.combining(first) != 0
        or "\u1160" <= first <= "\u11ff"  # Hangul vowels and finals
    )
