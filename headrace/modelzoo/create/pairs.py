"""Sentence pairs of a document by the rule of BERT (Devlin et al. 2018; create_pretraining_data.py of
google-research/bert, which create_tfrecords.py follows): where A and B lie in the store's tokens.

Nothing is copied here: a pair is five numbers. Sentences are gathered to a target length and split at random into A
and B; half of the time, and always when there is but one, B comes from a random place of another document and the
sentences meant for B are used again. With --sop_labels A and B change places instead, unless there is but one.
"""

import random
from collections.abc import Iterator

from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.create.token_store import TokenStore

Pair = tuple[int, int, int, int, int]  # A's start and stop, B's start and stop, label
IS_NEXT, IS_RANDOM = 0, 1
TRIES = 10
"""To find another document than the own one; then the own one has to do."""
_SENTENCES_AT_ONCE = 32


def document_pairs(
    store: TokenStore, document: int, documents_of_pass: range, settings: Settings, draw: random.Random
) -> Iterator[Pair]:
    """The pairs of one document; memory does not grow with its length."""
    uniform, start_of, room = draw.random, store.sentence_start, settings.room
    first, after = store.document(document)
    target = target_length(settings, draw, room)
    chunk_first, sentence = first, first
    chunk_start = start_of(first)
    while sentence < after:
        stop = start_of(sentence + 1)
        if sentence < after - 1 and stop - chunk_start < target:
            sentence += 1
            continue
        num_sentences = sentence + 1 - chunk_first
        split = 1 + int(uniform() * (num_sentences - 1)) if num_sentences >= 2 else 1
        middle = stop if num_sentences == 1 else start_of(chunk_first + split)
        a, b, label = (chunk_start, middle), (middle, stop), IS_NEXT
        if num_sentences == 1 or (not settings.sop_labels and uniform() < 0.5):
            b = _random_next(store, document, documents_of_pass, target - (middle - chunk_start), draw)
            label = IS_RANDOM
            sentence = chunk_first + split - 1
        elif settings.sop_labels and uniform() < 0.5:
            a, b, label = b, a, IS_RANDOM
        yield *_cut_to_fit(*a, *b, room, draw), label
        sentence += 1
        chunk_first = sentence
        chunk_start = start_of(chunk_first)


def target_length(settings: Settings, draw: random.Random, longest: int) -> int:
    """Mostly `longest`; with --short_seq_prob a random length from --min_short_seq_length on."""
    if draw.random() < settings.short_seq_prob:
        return draw.randint(settings.min_short_seq_length, longest)
    return longest


def _random_next(
    store: TokenStore, document: int, documents_of_pass: range, target: int, draw: random.Random
) -> tuple[int, int]:
    """Sentences from a random one of a random document on, until they hold `target` tokens."""
    other = document
    for _ in range(TRIES):
        other = documents_of_pass[int(draw.random() * len(documents_of_pass))]
        if other != document:
            break
    first, after = store.document(other)
    sentence = first + int(draw.random() * (after - first))
    start = None
    while True:
        places = store.sentence_starts(sentence, min(sentence + _SENTENCES_AT_ONCE, after))
        start = places[0] if start is None else start
        for stop in places[1:]:
            if stop - start >= target:
                return start, stop
        sentence += len(places) - 1
        if sentence >= after:
            return start, places[-1]


def _cut_to_fit(
    a_start: int, a_stop: int, b_start: int, b_stop: int, room: int, draw: random.Random
) -> tuple[int, int, int, int]:
    """Tokens are taken one by one from whichever is longer (B if equal), off the front or the back by a fair coin."""
    length_a, length_b = a_stop - a_start, b_stop - b_start
    excess = length_a + length_b - room
    if excess <= 0:
        return a_start, a_stop, b_start, b_stop
    # One by one ends here: first the difference goes, then the two take turns, B first.
    from_longer = min(excess, abs(length_a - length_b))
    rest = excess - from_longer
    off_a = (from_longer if length_a > length_b else 0) + rest // 2
    off_b = (0 if length_a > length_b else from_longer) + rest - rest // 2
    front_a = draw.getrandbits(off_a).bit_count() if off_a else 0  # as many fair coins
    front_b = draw.getrandbits(off_b).bit_count() if off_b else 0
    return a_start + front_a, a_stop - (off_a - front_a), b_start + front_b, b_stop - (off_b - front_b)
