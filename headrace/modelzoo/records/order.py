"""Which record comes k-th: a permutation that is computed, not stored.

Record number = permutation of range(n) at k under (seed, phase, epoch). It is a Feistel network over the bits of k whose
round function is a hash, followed again until it falls below n (Black, Rogaway: Ciphers with arbitrary finite domains,
2002). So the k-th record costs the same anywhere, no process holds a list as long as the data, and resuming needs k only.
"""

import numpy as np

from headrace.text.random import bits, key

_NUM_ROUNDS = 8


def shuffled(places: np.ndarray, size: int, key_: int) -> np.ndarray:
    """The permutation of range(size) that belongs to a key, at places (N,): int64 (N,)."""
    num_bits = max(2, (size - 1).bit_length())
    out = _scramble(places.astype(np.uint64), num_bits, key_)
    outside = np.flatnonzero(out >= size)
    while len(outside):
        again = _scramble(out[outside], num_bits, key_)
        out[outside] = again
        outside = outside[again >= size]
    return out.astype(np.int64)


def _scramble(x: np.ndarray, num_bits: int, key_: int) -> np.ndarray:
    """A permutation of range(2^num_bits). The halves change places each round, and with them their widths."""
    left_bits, right_bits = num_bits - num_bits // 2, num_bits // 2
    left, right = x >> np.uint64(right_bits), x & _ones(right_bits)
    for k in range(_NUM_ROUNDS):
        noise = bits(key_, right + (np.uint64(k) << np.uint64(40)))
        left, right = right, left ^ (noise & _ones(left_bits))
        left_bits, right_bits = right_bits, left_bits
    return left << np.uint64(right_bits) | right


def _ones(num_bits: int) -> np.uint64:
    return np.uint64((1 << num_bits) - 1)


def record_numbers(places: np.ndarray, size: int, *, seed: int, phase: str, epoch: int, shuffle: bool) -> np.ndarray:
    """The records at places (N,) of an epoch's order, int64 (N,): file order without shuffling."""
    if not shuffle:
        return places.astype(np.int64)
    return shuffled(places, size, key("records", seed, phase, epoch))


def record_keys(places: np.ndarray, *, seed: int, phase: str, epoch: int) -> np.ndarray:
    """The key of each place (N,) of an epoch, uint64 (N,): what masks drawn at load depend on."""
    with np.errstate(over="ignore"):
        return np.uint64(key("record", seed, phase, epoch)) + places.astype(np.uint64)
