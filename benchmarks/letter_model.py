"""The baseline of benchmarks/domains.py: letters from the n before them, by counts that back off to shorter contexts."""

from collections.abc import Sequence

import numpy as np


class LetterModel:
    """p(letter | last n letters) = (count + strength p(letter | last n - 1)) / (count of the context + strength), down to
    equal shares. Before the first letter stand signs of the beginning, so that it is known where a text begins."""

    def __init__(self, texts: Sequence[np.ndarray], num_letters: int, most_letters: int):
        """texts: arrays of codes below num_letters; most_letters: the longest context that is counted."""
        self.num_letters = num_letters
        self.tables: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        for n in range(most_letters + 1):
            contexts, letters = zip(*(_contexts(text, n, num_letters) for text in texts), strict=True)
            context, letter = np.concatenate(contexts), np.concatenate(letters)
            keys, counts = np.unique(context * num_letters + letter, return_counts=True)
            seen, totals = np.unique(context, return_counts=True)
            self.tables.append((keys, counts, seen, totals))

    def bits(self, text: np.ndarray, strength: float) -> np.ndarray:
        """-log2 p of each letter of a text, from the last 0, 1, ... most_letters before it: (most_letters + 1, N)."""
        p = np.full(len(text), 1 / self.num_letters)
        found = []
        for n, (keys, counts, seen, totals) in enumerate(self.tables):
            context, letter = _contexts(text, n, self.num_letters)
            count = _looked_up(keys, counts, context * self.num_letters + letter)
            total = _looked_up(seen, totals, context)
            p = (count + strength * p) / (total + strength)
            found.append(-np.log2(p))
        return np.stack(found)


def _contexts(text: np.ndarray, n: int, num_letters: int) -> tuple[np.ndarray, np.ndarray]:
    """(the n letters before, as a number; the letter) for each letter."""
    begun = np.concatenate([np.full(n, num_letters), text])
    context = np.zeros(len(text), np.int64)
    for i in range(n):
        context = context * (num_letters + 1) + begun[i : i + len(text)]
    return context, text.astype(np.int64)


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)
