"""What all rules promise: one call, state as they describe it, the same bits however slabs are cut."""

import itertools
import math
from collections.abc import Sequence

import pytest
import torch

from headrace.optim import SGD, Adafactor, AdamW, AdamW8bit, Rule, SplitAdamW, parameter_key

RULES = [
    AdamW(weight_decay=0.1),
    AdamW8bit(weight_decay=0.1),
    Adafactor(weight_decay=0.1),
    Adafactor(weight_decay=0.1, beta1=0.9, weight_dtype=torch.bfloat16),
    SplitAdamW(AdamW(weight_decay=0.1)),
    SGD(weight_decay=0.1),
    SGD(weight_decay=0.1, momentum=0.9, nesterov=True),
]
IDS = ["AdamW", "AdamW8bit", "Adafactor", "Adafactor-bf16-momentum", "SplitAdamW", "SGD", "SGD-momentum"]
SHAPES = [(), (1,), (300,), (7, 5), (129, 257), (3, 40, 24), (0,), (0, 4), (70_001,), (20_000, 2), (2, 40_000)]
each_rule = pytest.mark.parametrize("rule", RULES, ids=IDS)


def zero_state(rule: Rule, shape: Sequence[int]) -> list[torch.Tensor]:
    return [torch.zeros(size, dtype=dtype) for size, dtype in rule.state_of(shape).values()]


def random(seed: int, shape: Sequence[int]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def trained(rule: Rule, shape: Sequence[int], steps: int = 3, **kwargs: float) -> list[torch.Tensor]:
    """Weight and state of one parameter after some steps, given whole."""
    weight, state = random(0, shape).to(rule.weight_dtype), zero_state(rule, shape)
    for step in range(1, steps + 1):
        gradient = random(step, shape)
        rule.update(weight, gradient, *state, step=step, lr=1e-2, keys=[parameter_key(0, str(tuple(shape)))], **kwargs)
    return [weight, *state]


def same(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@each_rule
def test_roles_are_the_same_for_every_shape_and_say_what_is_needed(rule):
    assert len({tuple(rule.state_of(shape)) for shape in SHAPES}) == 1
    for shape in SHAPES:
        assert all(t.isfinite().all() for t in trained(rule, shape))


@pytest.mark.parametrize(
    ("rule", "num_bytes"),
    [
        (AdamW(), 8.0),
        (AdamW8bit(), 2.03125),
        (Adafactor(), 4 * (1 / 1024 + 1 / 4096)),
        (SGD(), 0.0),
        (SGD(0.9), 4.0),
        (SplitAdamW(), 10.0),
    ],
)
def test_bytes_of_state_for_a_weight(rule, num_bytes):
    found = sum(math.prod(shape) * dtype.itemsize for shape, dtype in rule.state_of((1024, 4096)).values())
    assert found / (1024 * 4096) == num_bytes


def test_which_rules_are_exact():
    assert [rule.exact for rule in RULES] == [True, False, True, False, True, True, True]
    assert [rule.weight_dtype for rule in RULES] == [
        torch.bfloat16 if rule in RULES[3:5] else torch.float32 for rule in RULES
    ]


@each_rule
@pytest.mark.parametrize("threads", [1, 2])
def test_lists_of_views_equal_one_parameter_after_the_other_on_any_number_of_threads(rule, threads):
    alone = [trained(rule, shape) for shape in SHAPES]
    sizes = [math.prod(shape) for shape in SHAPES]
    weights = torch.cat([random(0, shape).flatten() for shape in SHAPES]).to(rule.weight_dtype).split(sizes)
    lists = [
        [w.view(s) for w, s in zip(weights, SHAPES, strict=True)],
        *map(list, zip(*(zero_state(rule, s) for s in SHAPES), strict=True)),
    ]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for step in (1, 2, 3):
            gradients = torch.cat([random(step, shape).flatten() for shape in SHAPES]).split(sizes)
            gradients = [g.view(s) for g, s in zip(gradients, SHAPES, strict=True)]
            keys = [parameter_key(0, str(shape)) for shape in SHAPES]
            rule.update(lists[0], gradients, *lists[1:], step=step, lr=1e-2, keys=keys)
    finally:
        torch.set_num_threads(before)
    for i, expected in enumerate(alone):
        assert same([pieces[i] for pieces in lists], expected), SHAPES[i]


@each_rule
def test_a_cut_parameter_and_its_state_have_the_bits_of_one_that_is_whole(rule):
    size, cut = 200 * 256 + 77, rule.cut_elements
    if rule.needs_whole_parameter:
        assert cut == 0
        return
    expected = trained(rule, (size,))
    weight = random(0, (size,)).to(rule.weight_dtype)
    # Pieces lie at odd addresses, and are updated last to first.
    tensors = [torch.cat([t[:3], t])[3:] if len(t) > 3 else t for t in (weight, *zero_state(rule, (size,)))]
    for step in (1, 2, 3):
        gradient = random(step, (size,))
        borders = [0, cut, 5 * cut, 113 * cut, size] if step % 2 else [0, 120 * cut, size]
        for start, stop in reversed([*itertools.pairwise(borders)]):
            first = [start, *(shape.numel() for shape, _ in rule.state_of((start,)).values())]
            length = [stop - start, *(shape.numel() for shape, _ in rule.state_of((stop - start,)).values())]
            pieces = [t[a : a + n] for t, a, n in zip(tensors, first, length, strict=True)]
            rule.update(pieces[0], gradient[start:stop], *pieces[1:], step=step, lr=1e-2)
    assert same(tensors, expected)


@each_rule
def test_gradient_scale_multiplies_the_gradient_in_place(rule):
    shape, scale = (70, 50), 0.3
    results = []
    for gradient, factor in [
        (random(1, shape), scale),
        (random(1, shape), torch.tensor(scale)),
        (random(1, shape) * scale, 1.0),
    ]:
        weight, state = random(0, shape).to(rule.weight_dtype), zero_state(rule, shape)
        rule.update(weight, gradient, *state, step=1, lr=1e-2, gradient_scale=factor, keys=[7])
        results.append([weight, gradient, *state])
    assert same(results[0], results[2]) and same(results[1], results[2])
    assert not same(results[0][:1], trained(rule, shape, steps=1)[:1])


@each_rule
def test_weight_decay_of_a_call_replaces_the_rules(rule):
    decayed, plain = trained(rule, (70, 50), steps=1), trained(rule, (70, 50), steps=1, weight_decay=0.0)
    assert same(trained(rule, (70, 50), steps=1, weight_decay=0.1), decayed)
    assert not torch.equal(plain[0], decayed[0])


@each_rule
def test_nothing_to_update_is_allowed(rule):
    rule.update([], [], *([] for _ in rule.state_of((1,))), step=1, lr=0.1, keys=[], gradient_scale=0.5)


@each_rule
@pytest.mark.parametrize("wrong", range(4), ids=["gradient size", "gradient dtype", "weight strided", "state"])
def test_slabs_that_do_not_match_are_refused(rule, wrong):
    weight, gradient = torch.zeros(20, 10, dtype=rule.weight_dtype), torch.zeros(20, 10)
    state = zero_state(rule, (20, 10))
    if wrong == 0:
        gradient = torch.zeros(20, 9)
    elif wrong == 1:
        gradient = gradient.half()
    elif wrong == 2:
        weight = torch.zeros(20, 20, dtype=rule.weight_dtype)[:, ::2]
    else:
        state = [*state[:-1], torch.zeros(3)] if state else [torch.zeros(20, 10)]
    with pytest.raises((AssertionError, RuntimeError)):
        rule.update(weight, gradient, *state, step=1, lr=0.1, keys=[0])
