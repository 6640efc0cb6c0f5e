"""Which tokens make up each example, in which order: pure functions of (seed, phase, epoch).

    shards -> windows (shuffled groups of shards) -> plan of a window (where each example lies) -> shuffled examples

A window is planned when it is reached, so memory does not grow with the corpus; a cursor {epoch, window, offset} is
all that resuming needs. The rule for sentence pairs is BERT's (Devlin et al. 2018; create_pretraining_data).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from headrace.errors import UserError
from headrace.text.random import generator, key
from headrace.text.token_windows import TokenWindows, plan_token_windows
from headrace.text.tokens import Shard

ExampleKind = Literal["sentence_pairs", "documents", "sentences", "windows", "rows"]  # rows: not of documents
IS_NEXT, IS_RANDOM, NO_LABEL = 0, 1, -1  # BertForPreTraining's next_sentence_label; NO_LABEL = no pair

WINDOW_SENTENCES = 1_000_000  # planned at once: 28 MB of plan, about a second of work
_DRAWS = 1 << 14


@dataclass(frozen=True, slots=True)
class Cursor:
    """The next example of an endless order: `offset` in the `window`-th window of `epoch`."""

    epoch: int = 0
    window: int = 0
    offset: int = 0

    def state(self) -> dict[str, int]:
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, int]) -> "Cursor":
        return cls(**state)


@dataclass(frozen=True)
class ExampleRule:
    """How examples are cut out of documents."""

    kind: ExampleKind
    sequence_length: int  # special tokens included
    short_example_rate: float
    seed: int
    phase: str

    @property
    def num_special(self) -> int:
        return 3 if self.kind == "sentence_pairs" else 2  # [CLS] A [SEP] B [SEP] | [CLS] A [SEP]


@dataclass(frozen=True)
class Plan:
    """Where examples lie. spans: int32 (n, 7) = shard_a, start_a, stop_a, shard_b, start_b, stop_b, label; for windows,
    n arrays of pieces (`headrace.text.token_windows`)."""

    spans: np.ndarray | TokenWindows
    dropped_tokens: Counter[str]  # reason -> tokens that no example of this plan holds
    used_tokens: int


def check_enough_documents(shards: Sequence[Shard], kind: ExampleKind) -> None:
    """Sentence pairs need a second document to draw a random sentence from; raises UserError."""
    num_documents = sum(shard.info.num_documents for shard in shards)
    if num_documents == 0:
        raise UserError("the text gives no training document; give more text or lower text.held_out")
    if kind == "sentence_pairs" and not hold_two_texts(shards):
        found = "a single document" if num_documents == 1 else f"the same document {num_documents:,} times"
        raise UserError(
            "task.examples = 'sentence_pairs' needs at least two documents, to draw a random next sentence from another "
            f"one, and the training text is {found}; separate documents (blank lines between them in a plain "
            "text file), or use task.examples = 'documents'"
        )


def hold_two_texts(shards: Sequence[Shard]) -> bool:
    """Whether any two documents differ: a random next sentence comes from another text, and a copy is none."""
    first = None
    for shard in shards:
        hashes = shard.document_hashes
        first = hashes[0] if first is None else first
        if (hashes != first).any():
            return True
    return False


def windows_of(shards: Sequence[Shard], rule: ExampleRule, epoch: int | None) -> list[list[int]]:
    """Shard numbers, shuffled for the epoch (None = in order) and grouped into windows of at least two documents."""
    order = (
        np.arange(len(shards))
        if epoch is None
        else generator("shards", rule.seed, rule.phase, epoch).permutation(len(shards))
    )
    windows: list[list[int]] = [[]]
    sentences = documents = 0
    for shard in order.tolist():
        if sentences >= WINDOW_SENTENCES and documents >= 2:
            windows.append([])
            sentences = documents = 0
        windows[-1].append(shard)
        sentences += shards[shard].info.num_sentences
        documents += shards[shard].info.num_documents
    if documents < 2 and len(windows) > 1:
        last = windows.pop()
        windows[-1] += last
    return windows


def plan_window(shards: Sequence[Shard], window: Sequence[int], rule: ExampleRule, epoch: int, ordinal: int) -> Plan:
    """Cut the documents of a window into examples, in document order (`windows`: in an order of the epoch)."""
    if rule.kind == "sentences":
        return _plan_sentences(shards, window, rule)
    source = generator("plan", rule.seed, rule.phase, epoch, ordinal)
    if rule.kind == "windows":
        windows = plan_token_windows(shards, window, rule.sequence_length, source)
        return Plan(windows, Counter(), windows.num_tokens)
    draws = _Draws(source)
    if rule.kind == "documents":
        return _plan_documents(shards, window, rule, draws)
    return _plan_pairs(shards, window, rule, draws)


def examples_from(
    shards: Sequence[Shard], rule: ExampleRule, cursor: Cursor
) -> Iterator[tuple[np.ndarray, int, Cursor]]:
    """Endless (span, example key, cursor after it), starting at cursor."""
    while True:
        windows = windows_of(shards, rule, cursor.epoch)
        while cursor.window < len(windows):
            plan = plan_window(shards, windows[cursor.window], rule, cursor.epoch, cursor.window)
            order = generator("order", rule.seed, rule.phase, cursor.epoch, cursor.window).permutation(len(plan.spans))
            window_key = key("example", rule.seed, rule.phase, cursor.epoch, cursor.window)
            for offset in range(cursor.offset, len(order)):
                after = Cursor(cursor.epoch, cursor.window, offset + 1)
                yield plan.spans[order[offset]], (window_key + offset) % 2**64, after
            for shard in windows[cursor.window]:
                shards[shard].close()
            cursor = Cursor(cursor.epoch, cursor.window + 1, 0)
        cursor = Cursor(cursor.epoch + 1, 0, 0)


def every_example(shards: Sequence[Shard], rule: ExampleRule) -> Iterator[tuple[np.ndarray, int]]:
    """Each example of one pass, in the order of the plan: (span, example key). For evaluation."""
    for ordinal, window in enumerate(windows_of(shards, rule, None)):
        window_key = key("example", rule.seed, rule.phase, 0, ordinal)
        spans = plan_window(shards, window, rule, 0, ordinal).spans
        for offset in range(len(spans)):
            yield spans[offset], (window_key + offset) % 2**64
        for shard in window:
            shards[shard].close()


def account(shards: Sequence[Shard], rule: ExampleRule) -> dict[str, Any]:
    """What the first epoch makes of the tokens: tokens in = used + dropped by reason, and the share of random pairs."""
    used = num_examples = num_random = num_tokens = 0
    dropped: Counter[str] = Counter()
    for ordinal, window in enumerate(windows_of(shards, rule, 0)):
        plan = plan_window(shards, window, rule, 0, ordinal)
        used += plan.used_tokens
        dropped.update(plan.dropped_tokens)
        num_examples += len(plan.spans)
        if isinstance(plan.spans, np.ndarray):
            num_random += int((plan.spans[:, 6] == IS_RANDOM).sum())
        for shard in window:
            num_tokens += shards[shard].info.num_tokens
            shards[shard].close()
    assert num_tokens == used + sum(dropped.values()), (num_tokens, used, dropped)
    return {
        "examples": num_examples,
        "tokens": num_tokens,
        "tokens_used": used,
        "dropped": {reason: count for reason, count in dropped.items() if count},
        "random_next_share": num_random / num_examples if rule.kind == "sentence_pairs" and num_examples else None,
    }


class _Draws:
    """Uniform draws from a generator, taken in blocks because single draws cost microseconds."""

    def __init__(self, source: np.random.Generator):
        self._source, self._block, self._next = source, [], 0

    def uniform(self) -> float:
        if self._next == len(self._block):
            self._block, self._next = self._source.random(_DRAWS).tolist(), 0
        self._next += 1
        return self._block[self._next - 1]

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + int(self.uniform() * (high - low + 1))


def _target_length(rule: ExampleRule, room: int, draws: _Draws) -> int:
    """BERT's: mostly the full room, sometimes a random shorter length, so that the model also sees short texts."""
    return draws.integer(2, room) if draws.uniform() < rule.short_example_rate else room


def _plan_sentences(shards: Sequence[Shard], window: Sequence[int], rule: ExampleRule) -> Plan:
    """Every sentence alone; one too long is cut into pieces of nearly equal length, so that nothing is dropped."""
    room = rule.sequence_length - rule.num_special
    parts = [np.empty((0, 7), np.int32)]
    for shard in window:
        ends = shards[shard].sentence_ends.astype(np.int64)
        starts = np.concatenate([[0], ends[:-1]])
        pieces = -(-(ends - starts) // room)  # (S,)
        sentence = np.repeat(np.arange(len(ends)), pieces)
        piece = np.arange(len(sentence)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        length, count = (ends - starts)[sentence], pieces[sentence]
        spans = np.zeros((len(sentence), 7), np.int32)
        spans[:, 0] = shard
        spans[:, 1] = starts[sentence] + piece * length // count
        spans[:, 2] = starts[sentence] + (piece + 1) * length // count
        spans[:, 6] = NO_LABEL
        parts.append(spans)
    spans = np.concatenate(parts)
    return Plan(spans, Counter(), int((spans[:, 2] - spans[:, 1]).sum()))


def _plan_documents(shards: Sequence[Shard], window: Sequence[int], rule: ExampleRule, draws: _Draws) -> Plan:
    """Consecutive sentences of one document up to the target length; a longer sentence is cut, nothing is dropped."""
    room = rule.sequence_length - rule.num_special
    rows: list[tuple[int, int, int]] = []
    for shard in window:
        ends = shards[shard].sentence_ends.tolist()
        first = 0
        for last in shards[shard].document_ends.tolist():
            start = ends[first - 1] if first else 0
            target = _target_length(rule, room, draws)
            stop = start
            for end in ends[first:last]:
                if end - start > target and stop > start:
                    rows.append((shard, start, stop))
                    start, target = stop, _target_length(rule, room, draws)
                while end - start > room:
                    rows.append((shard, start, start + room))
                    start += room
                stop = end
            if stop > start:
                rows.append((shard, start, stop))
            first = last
    spans = np.zeros((len(rows), 7), np.int32)
    if rows:
        spans[:, :3] = rows
    spans[:, 6] = NO_LABEL
    return Plan(spans, Counter(), int((spans[:, 2] - spans[:, 1]).sum()))


def _plan_pairs(shards: Sequence[Shard], window: Sequence[int], rule: ExampleRule, draws: _Draws) -> Plan:
    """BERT's sentence pairs: A and B are consecutive, or half of the time B comes from another document."""
    room = rule.sequence_length - rule.num_special
    ends_of = {shard: shards[shard].sentence_ends.tolist() for shard in window}
    documents: list[tuple[int, int, int]] = []  # shard, first sentence, sentence after the last
    hashes: list[int] = []
    for shard in window:
        stops = shards[shard].document_ends.tolist()
        documents += [(shard, first, stop) for first, stop in zip([0, *stops[:-1]], stops, strict=True)]
        hashes += shards[shard].document_hashes.tolist()
    if len(set(hashes)) < 2:
        raise UserError(
            "all training documents are the same text; sentence pairs need at least two different documents"
        )

    rows: list[tuple[int, int, int, int, int, int, int]] = []
    dropped: Counter[str] = Counter()
    total = covered = 0
    for number, (shard, first, after) in enumerate(documents):
        ends = ends_of[shard]
        total += ends[after - 1] - (ends[first - 1] if first else 0)
        chunk_first, i, target = first, first, _target_length(rule, room, draws)
        while i < after:
            chunk_start = ends[chunk_first - 1] if chunk_first else 0
            if i < after - 1 and ends[i] - chunk_start < target:
                i += 1
                continue
            num_sentences = i + 1 - chunk_first
            split = draws.integer(1, num_sentences - 1) if num_sentences >= 2 else 1  # sentences that go to A
            middle = ends[chunk_first + split - 1]
            a = (chunk_start, middle)
            if num_sentences == 1 or draws.uniform() < 0.5:
                other = _another_document(number, hashes, draws)
                b_shard, b = _random_next(documents[other], ends_of, max(1, target - (middle - chunk_start)), draws)
                label = IS_RANDOM
                i = chunk_first + split - 1  # sentences not used by A go back
            else:
                b_shard, b, label = shard, (middle, ends[i]), IS_NEXT
            covered_before = (a[1] - a[0]) + (b[1] - b[0] if label == IS_NEXT else 0)
            a, b = _truncate_pair(a, b, room, draws)
            kept = (a[1] - a[0]) + (b[1] - b[0] if label == IS_NEXT else 0)
            dropped["cut from a pair longer than the sequence length"] += covered_before - kept
            covered += kept
            rows.append((shard, *a, b_shard, *b, label))
            i += 1
            chunk_first, target = i, _target_length(rule, room, draws)
    assert covered + sum(dropped.values()) == total
    return Plan(np.array(rows, np.int32).reshape(-1, 7), dropped, covered)


def _another_document(number: int, hashes: Sequence[int], draws: _Draws) -> int:
    """A document with another text than document `number`."""
    while True:
        other = draws.integer(0, len(hashes) - 1)
        if hashes[other] != hashes[number]:
            return other


def _random_next(
    document: tuple[int, int, int], ends_of: dict[int, list[int]], target: int, draws: _Draws
) -> tuple[int, tuple[int, int]]:
    """Sentences of the document from a random one on, until they hold target tokens: (shard, (start, stop))."""
    shard, first, after = document
    ends = ends_of[shard]
    sentence = draws.integer(first, after - 1)
    start = ends[sentence - 1] if sentence else 0
    while sentence < after - 1 and ends[sentence] - start < target:
        sentence += 1
    return shard, (start, ends[sentence])


def _truncate_pair(
    a: tuple[int, int], b: tuple[int, int], room: int, draws: _Draws
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shorten the longer of the two until both fit; each token comes off the front or the back by a fair coin."""
    length_a, length_b = a[1] - a[0], b[1] - b[0]
    excess = length_a + length_b - room
    if excess <= 0:
        return a, b
    # Taking single tokens from whichever is longer ends here: first the difference, then alternately.
    from_longer = min(excess, abs(length_a - length_b))
    rest = excess - from_longer
    off_a = (from_longer if length_a > length_b else 0) + rest // 2
    off_b = (from_longer if length_b >= length_a else 0) + rest - rest // 2
    return _cut(a, off_a, draws), _cut(b, off_b, draws)


def _cut(span: tuple[int, int], count: int, draws: _Draws) -> tuple[int, int]:
    front = sum(draws.uniform() < 0.5 for _ in range(count))
    return span[0] + front, span[1] - (count - front)
