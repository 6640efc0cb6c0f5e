"""A stream of texts of unknown length -> a seeded sample of bounded size, the same whatever order they arrive in."""

import hashlib
import heapq
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Sample:
    """Texts in a fixed, shuffled order, and what they were drawn from."""

    texts: list[str]
    sampled_characters: int
    seen_texts: int
    seen_characters: int
    oversized_texts: int
    """Texts longer than the whole sample may be: never drawn."""


def reservoir_sample(items: Iterable[tuple[object, str]], max_characters: int, seed: int) -> Sample:
    """Draws texts until `max_characters` are reached; `items` are (key, text) with keys that name a text uniquely.

    Each text's priority is a hash of (seed, key). The sample is the longest prefix, in priority order, that fits, so
    it depends on the set of items alone: neither on their order nor on how many workers read them.
    Memory: the sample itself.
    """
    heap: list[tuple[int, str, str]] = []  # (-priority, key, text): the worst priority on top
    sampled_characters = seen_texts = seen_characters = oversized_texts = 0
    limit = 1 << 64  # the best priority ever turned away; admitting a worse one later would make order matter
    salt = seed.to_bytes(8, "little", signed=True)
    for key, text in items:
        seen_texts += 1
        seen_characters += len(text)
        if len(text) > max_characters:
            oversized_texts += 1
            continue
        name = str(key)
        priority = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, salt=salt).digest(), "big")
        if priority >= limit:
            continue
        heapq.heappush(heap, (-priority, name, text))
        sampled_characters += len(text)
        while sampled_characters > max_characters:
            negative, _, dropped = heapq.heappop(heap)
            limit = -negative
            sampled_characters -= len(dropped)
    texts = [text for _, _, text in sorted(heap, reverse=True)]
    return Sample(texts, sampled_characters, seen_texts, seen_characters, oversized_texts)
