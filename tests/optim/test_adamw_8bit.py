"""8-bit AdamW: what its codes can say, that they are right on average, and that training with them follows AdamW."""

import pytest
import torch
from torch import nn

from headrace.optim import AdamW, AdamW8bit
from headrace.optim.adamw_8bit import _decode_positive, _decode_signed, _dither, _encode_positive, _encode_signed

CPU = torch.device("cpu")


def decoded(x: torch.Tensor, step: int = 1, signed: bool = False) -> torch.Tensor:
    """x (blocks, 256) after encoding and decoding."""
    codes, scale = torch.zeros(x.shape, dtype=torch.uint8), torch.zeros(len(x), 1)
    if signed:
        _encode_signed(x.clone(), _dither(step, CPU)[0], codes, scale)
        return _decode_signed(codes, scale)
    _encode_positive(x.clone(), _dither(step, CPU)[1], codes, scale)
    return _decode_positive(codes, scale)


def wide(seed: int, octaves: float, blocks: int = 50) -> torch.Tensor:
    """Positive (blocks, 256), spread evenly over so many octaves; each block's largest of a size of its own."""
    generator = torch.Generator().manual_seed(seed)
    x = 2.0 ** -(octaves * torch.rand(blocks, 256, generator=generator))
    return x * 10.0 ** torch.randint(-18, 18, (blocks, 1), generator=generator)


def zero_state(size: int) -> list[torch.Tensor]:
    return [torch.zeros(s, dtype=dtype) for s, dtype in AdamW8bit().state_of((size,)).values()]


def test_second_moments_err_by_an_eighth_at_most_over_31_octaves_and_never_become_zero():
    x = wide(0, 31.0)
    for step in range(1, 20):
        error = decoded(x, step) / x - 1.0
        assert error.min() >= -1 / 9 - 1e-6 and error.max() <= 1 / 8 + 1e-6
    x = wide(0, 90.0)
    y = decoded(x)
    assert (y >= x * (8 / 9 - 1e-6)).all() and y.isfinite().all()  # what is too small is raised
    assert (y <= torch.maximum(x * (9 / 8 + 1e-6), x.amax(1, keepdim=True) * 2.0**-30)).all()
    assert not decoded(torch.zeros(3, 256)).any()


def test_first_moments_keep_their_sign_and_their_zeros():
    x = wide(1, 40.0) * torch.where(torch.rand(50, 256, generator=torch.Generator().manual_seed(2)) < 0.5, -1.0, 1.0)
    x[:, ::7] = 0.0
    largest = x.abs().amax(1, keepdim=True)
    for step in range(1, 20):
        y = decoded(x, step, signed=True)
        assert (y * x >= 0.0).all() and (y[x == 0.0] == 0.0).all()
        assert ((y - x).abs() <= x.abs() / 8 + largest * 2.0**-17).all()


@pytest.mark.parametrize("largest", [1e-45, 1e-38, 1e-30, 1e30, 1.6e38, 3.4e38])
def test_moments_at_the_ends_of_fp32_stay_finite(largest):
    x = wide(3, 10.0)
    x = (x / x.amax(1, keepdim=True)).mul_(largest)
    for signed in (False, True):
        y = decoded(x, signed=signed)
        assert y.isfinite().all()
        if 1e-30 <= largest <= 1.6e38:
            torch.testing.assert_close(y, x, rtol=0.13, atol=largest * 2.0**-17)


@pytest.mark.parametrize("signed", [False, True])
def test_codes_are_right_on_average_over_steps(signed):
    x = wide(4, 12.0)
    mean = torch.stack([decoded(x, step, signed).double() for step in range(1, 1001)]).mean(0)
    # An even sequence of 1,000 thresholds: the error is some thousandths of a step, which is an eighth. Random ones: 30 times more.
    assert (mean / x.double() - 1.0).abs().max() < 1e-3


def test_the_first_update_is_adamws():
    generator = torch.Generator().manual_seed(0)
    weight, gradient = torch.randn(1000, generator=generator), torch.randn(1000, generator=generator)
    expected = weight.clone()
    AdamW().update(expected, gradient.clone(), torch.zeros(1000), torch.zeros(1000), step=1, lr=1e-2)
    AdamW8bit().update(weight, gradient, *zero_state(1000), step=1, lr=1e-2)
    torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-6)
    AdamW8bit(bias_correction=False).update(weight, gradient, *zero_state(1000), step=1, lr=1e-2)
    AdamW(bias_correction=False).update(expected, gradient, torch.zeros(1000), torch.zeros(1000), step=1, lr=1e-2)
    torch.testing.assert_close(weight, expected, rtol=1e-6, atol=1e-6)


def test_second_moments_follow_a_slow_change():
    # From 1 to 1/100 in half of a block: rounded to nearest, codes would stay, as a step changes v by a thousandth.
    generator = torch.Generator().manual_seed(0)
    weights, gradient = [torch.zeros(512), torch.zeros(512)], torch.ones(512)
    state, moments = zero_state(512), [torch.zeros(512), torch.zeros(512)]
    ours, theirs = AdamW8bit(), AdamW()
    for step in range(1, 2501):
        if step > 500:
            gradient[::2] = 0.1
        g = gradient * torch.randn(512, generator=generator)
        ours.update(weights[0], g, *state, step=step, lr=1e-3)
        theirs.update(weights[1], g, *moments, step=step, lr=1e-3)
    v = _decode_positive(state[2].view(2, 256), state[3][:, None]).flatten()
    ratio = v / moments[1]
    assert ratio.min() > 0.4 and ratio.max() < 2.0 and ratio.std() < 0.2  # rounded to nearest: 0.17, 3.4, 1.0
    assert abs(ratio[::2].mean() - 1.0) < 0.2 and abs(ratio[1::2].mean() - 1.0) < 0.03


def test_updates_stay_as_small_as_adamws_whatever_the_gradients():
    # Cauchy noise over 12 decades, elements that are rarely or never used, and a spike of 1e6.
    size, lr, generator = 5000, 1e-3, torch.Generator().manual_seed(0)
    sizes = 10.0 ** -(12.0 * torch.rand(size, generator=generator))
    weights, state, moments = (
        [torch.zeros(size), torch.zeros(size)],
        zero_state(size),
        [torch.zeros(size), torch.zeros(size)],
    )
    ours, theirs = AdamW8bit(eps=1e-30, weight_decay=0.0), AdamW(eps=1e-30, weight_decay=0.0)
    largest = [0.0, 0.0]
    for step in range(1, 401):
        g = torch.empty(size).cauchy_(generator=generator).mul_(sizes)
        g[::3] *= torch.rand(len(g[::3]), generator=generator) < 0.02
        g[::10] = 0.0
        if step == 200:
            g[7::1000] = 1e6
        before = [w.clone() for w in weights]
        ours.update(weights[0], g, *state, step=step, lr=lr)
        theirs.update(weights[1], g, *moments, step=step, lr=lr)
        largest = [
            max(old, float((w - b).abs().max()) / lr) for old, w, b in zip(largest, weights, before, strict=True)
        ]
    assert weights[0].isfinite().all()
    assert 1.0 < largest[0] < 1.2 * largest[1]
    assert not weights[0][::10].any()


class NextToken(nn.Module):
    """A transformer of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 64)

    def forward(self, tokens_BT: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens_BT.shape[1] - 1)
        logits = self.head(self.layers(self.embedding(tokens_BT[:, :-1]), mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens_BT[:, 1:].flatten())


def losses(rule: AdamW | AdamW8bit, steps: int) -> torch.Tensor:
    """Of a model that learns which four tokens may follow each token."""
    torch.manual_seed(0)
    model, generator = NextToken(), torch.Generator().manual_seed(1)
    followers = torch.randint(0, 64, (64, 4), generator=generator)
    params = list(model.parameters())
    state = [[torch.zeros(s, dtype=t) for s, t in rule.state_of(p.shape).values()] for p in params]
    roles = [list(role) for role in zip(*state, strict=True)]
    found = []
    for step in range(1, steps + 1):
        tokens = [torch.randint(0, 64, (16,), generator=generator)]
        for _ in range(16):
            tokens.append(followers[tokens[-1], torch.randint(0, 4, (16,), generator=generator)])
        loss = model(torch.stack(tokens, 1))
        gradients = list(torch.autograd.grad(loss, params))
        rule.update([p.detach() for p in params], gradients, *roles, step=step, lr=6e-3)
        found.append(loss.detach())
    return torch.stack(found)


def test_a_transformer_learns_as_with_adamw():
    theirs, ours = losses(AdamW(), 160), losses(AdamW8bit(), 160)
    assert ours.isfinite().all() and torch.equal(ours[:10], losses(AdamW8bit(), 10))
    means = [x.view(8, 20).mean(1) for x in (theirs, ours)]
    assert means[0][0] > 3.0 and means[0][-1] < 1.6  # it did learn: ln 64 = 4.16, ln 4 = 1.39
    assert (means[1] / means[0] - 1.0).abs().max() < 0.01  # the band; 0.001 when written
