"""Seeding: the draws of torch.manual_seed, from the generators that are used alone."""

import torch

from headrace.streaming.generator import seed_generators


def test_draws_are_those_of_manual_seed():
    for seed in (0, 3, 2**63 - 1, 2**64 - 1):
        torch.manual_seed(seed)
        expected = torch.rand(9), torch.nn.functional.dropout(torch.ones(99), 0.5)
        torch.rand(5)
        seed_generators(seed, torch.device("cpu"))
        assert torch.equal(torch.rand(9), expected[0])
        assert torch.equal(torch.nn.functional.dropout(torch.ones(99), 0.5), expected[1])
