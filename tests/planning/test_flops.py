"""What a step is said to compute, beside a count of its matrix products."""

from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import GPT2Config, GPT2LMHeadModel

from headrace.planning.flops import training_flops


def test_frozen_weights_cost_a_gradient_less():
    torch.manual_seed(0)
    config = GPT2Config(n_embd=64, n_layer=2, n_head=2, vocab_size=300, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    matrices = [p for p in model.transformer.h.parameters() if p.ndim == 2]
    in_blocks, in_head = sum(p.numel() for p in matrices), model.lm_head.weight.numel()
    batch: Any = SimpleNamespace(num_tokens=2 * 24, num_targets=2 * 24, sum_squared_lengths=2 * 24**2)

    def counted() -> float:
        ids = torch.randint(300, (2, 24))
        with FlopCounterMode(display=False) as counter:
            model(inputs_embeds=torch.randn(2, 24, 64, requires_grad=True), labels=ids).loss.backward()
        return counter.get_total_flops()

    whole = counted()
    model.requires_grad_(False)
    frozen = counted()
    ours = [training_flops("causal_lm", config, in_blocks, batch, *less) for less in ((0, 0), (in_blocks, in_head))]
    assert whole - frozen == ours[0] - ours[1]
