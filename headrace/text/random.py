"""Random numbers as pure functions of what they are for.

A key names the purpose, e.g. key("mask", seed, phase, epoch, index); draws are a hash of key and counter. Nothing is
consumed in order, so any process can draw any number at any time, and resuming needs no generator state.
The hash is the finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
"""

import hashlib

import numpy as np

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key(*parts: int | str) -> int:
    """A 64-bit key of integers and strings; different parts give unrelated keys."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


def generator(*parts: int | str) -> np.random.Generator:
    """A numpy generator for work that is done whole, such as a permutation."""
    return np.random.Generator(np.random.PCG64(key(*parts)))


def bits(keys: np.ndarray | int, counters: np.ndarray) -> np.ndarray:
    """64 random bits for each (key, counter), uint64, shapes broadcast."""
    with np.errstate(over="ignore"):
        x = np.asarray(keys, np.uint64) + (counters.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def uniform(keys: np.ndarray | int, counters: np.ndarray) -> np.ndarray:
    """A float64 in [0, 1) for each (key, counter)."""
    return (bits(keys, counters) >> np.uint64(11)) * 2.0**-53
