"""SGD on slabs against torch.optim.SGD, bit for bit."""

import pytest
import torch

from headrace.optim import SGD

SHAPES = [(1,), (3,), (7, 5), (16,), (1023,), (129, 257), (65_537,)]


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_equal_to_torch_bit_for_bit(momentum, nesterov, weight_decay):
    generator = torch.Generator().manual_seed(0)
    rule = SGD(momentum=momentum, nesterov=nesterov, weight_decay=weight_decay)
    params = [torch.randn(shape, generator=generator).requires_grad_() for shape in SHAPES]
    fused = bool(momentum)  # without momentum both of torch's have the same bits
    theirs = torch.optim.SGD(
        params, lr=0.1, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, fused=fused
    )
    weights = [p.detach().clone() for p in params]
    buffers = [torch.zeros_like(w) for w in weights]
    for step in range(1, 6):
        theirs.param_groups[0]["lr"] = lr = 0.1 / step
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        gradients = [p.grad.clone() for p in params if p.grad is not None]
        theirs.step()
        rule.update(weights, gradients, *([buffers] if momentum else []), step=step, lr=lr)
        assert all(torch.equal(w, p) for w, p in zip(weights, params, strict=True))
    if momentum:
        assert all(torch.equal(b, theirs.state[p]["momentum_buffer"]) for b, p in zip(buffers, params, strict=True))


def test_state_that_a_rule_does_not_have_is_refused():
    with pytest.raises(AssertionError):
        SGD().update(torch.zeros(3), torch.zeros(3), torch.zeros(3), step=1, lr=0.1)
    with pytest.raises(AssertionError):
        SGD(momentum=0.9).update(torch.zeros(3), torch.zeros(3), step=1, lr=0.1)
    with pytest.raises(AssertionError):
        SGD(nesterov=True)
