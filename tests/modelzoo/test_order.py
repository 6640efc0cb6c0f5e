"""The order is a permutation for every size, another one for every key, and looks random."""

import numpy as np
import pytest

from headrace.modelzoo.records.order import record_keys, record_numbers, shuffled


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 16, 17, 255, 256, 257, 1000, 4097, 100_003])
def test_is_a_permutation(size):
    places = np.arange(size)
    found = shuffled(places, size, 12345)
    assert found.dtype == np.int64 and np.array_equal(np.sort(found), places)
    some = places[:: max(1, size // 50)]
    assert np.array_equal(shuffled(some, size, 12345), found[some])


def test_depends_on_seed_phase_and_epoch():
    places = np.arange(1000)

    def order(**changes):
        return record_numbers(
            places, 1000, **{"seed": 1, "phase": "a", "epoch": 0, "shuffle": True, **changes}
        ).tolist()

    orders = [order(), order(seed=2), order(phase="b"), order(epoch=1), order(shuffle=False)]
    assert len({tuple(each) for each in orders}) == 5 and orders[4] == places.tolist() and order() == orders[0]
    keys = record_keys(places, seed=1, phase="a", epoch=0)
    assert keys.dtype == np.uint64 and len(np.unique(keys)) == 1000


def test_looks_random():
    """Where each number lands over many keys: all six orders of three, and no place or neighbour is preferred."""
    orders, counts = np.unique([shuffled(np.arange(3), 3, key) for key in range(6000)], axis=0, return_counts=True)
    assert len(orders) == 6 and counts.min() > 850 and counts.max() < 1150
    size = 1000
    found = np.array([shuffled(np.arange(size), size, key) for key in range(100)])
    assert abs(np.corrcoef(found[:-1].ravel(), found[1:].ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(found[:, :-1].ravel(), found[:, 1:].ravel())[0, 1]) < 0.02
    followed_by_next = (np.diff(found, axis=1) == 1).mean()
    assert followed_by_next < 0.003  # 0.001 by chance
    first_places = np.bincount(found[:, :10].ravel() // 100, minlength=10)
    assert first_places.min() > 60 and first_places.max() < 140
