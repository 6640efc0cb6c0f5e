"""Clipping by value against torch's own, before a rule that is otherwise the same."""

import torch

from headrace.optim import AdamW, ClipByValue, describe


def test_equals_torch_clip_then_adamw():
    torch.manual_seed(0)
    weight = torch.randn(129)
    plain = torch.nn.Parameter(weight.clone())
    reference = torch.optim.AdamW([plain], lr=1e-2, eps=1e-6, weight_decay=0.01, fused=True)
    moments = [torch.zeros(129), torch.zeros(129)]
    rule = ClipByValue(AdamW(), 0.3)
    for step in range(1, 4):
        gradient = torch.randn(129)
        plain.grad = gradient * 0.5
        torch.nn.utils.clip_grad_value_([plain], 0.3)
        reference.step()
        rule.update(weight, gradient, *moments, step=step, lr=1e-2, gradient_scale=0.5)
        assert gradient.abs().max() <= 0.3
    assert torch.equal(weight, plain)


def test_a_run_goes_on_with_or_without_it():
    assert describe(ClipByValue(AdamW(), 0.3)) == describe(AdamW())
