"""Initial weights from given distributions: their moments and bounds, in their places, decided by the seed alone."""

import math

import pytest
import torch
from transformers import BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel

from headrace.errors import UserError
from headrace.model_params import DistributionParams, InitialParams
from headrace.models.blank import fill_blanks
from headrace.models.distributions import distribution_of, draw
from headrace.models.initial import initial_weights
from headrace.models.segments import segments_of

SHAPE = torch.Size((400, 300))


def drawn(module=None, **keys):
    return draw(DistributionParams(**keys), "name", SHAPE, module or torch.nn.Linear(1, 1), seed=1)


def test_moments_and_bounds():
    normal = drawn(kind="normal", mean=0.5, std=0.1)
    assert (normal.mean().item(), normal.std().item()) == pytest.approx((0.5, 0.1), rel=0.02)
    cut = drawn(kind="truncated_normal", std=0.02)
    assert cut.abs().max() <= 0.04
    assert cut.std().item() == pytest.approx(0.02 * 0.8796, rel=0.02)
    assert drawn(kind="truncated_normal", std=0.02, low=-0.01, high=0.01).abs().max() <= 0.01
    even = drawn(kind="uniform", low=-0.3, high=0.1)
    assert even.min() >= -0.3 and even.max() <= 0.1 and even.mean().item() == pytest.approx(-0.1, abs=0.002)
    assert (drawn(kind="constant", mean=0.7) == 0.7).all()


@pytest.mark.parametrize(("fan", "size"), [("in", 300), ("out", 400), ("average", 350)])
@pytest.mark.parametrize("kind", ["normal", "truncated_normal", "uniform"])
def test_scale_is_variance_times_fan(kind, fan, size):
    values = drawn(kind=kind, scale=2.0, fan=fan)
    assert values.std().item() == pytest.approx(math.sqrt(2.0 / size), rel=0.02)


def test_embeddings_count_rows_as_inputs():
    values = drawn(torch.nn.Embedding(1, 1), kind="normal", scale=1.0, fan="out")
    assert values.std().item() == pytest.approx(math.sqrt(1 / 300), rel=0.02)


def test_places_in_a_model():
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    fill_blanks(model, torch.device("cpu"))
    initial = InitialParams(
        embeddings=DistributionParams(kind="constant", mean=1.0),
        matrices=DistributionParams(kind="constant", mean=2.0),
        outputs=DistributionParams(kind="constant", mean=3.0),
    )
    segments = segments_of(model)
    weights = {n: w for i in range(len(segments)) for n, w in initial_weights(model, segments, i, 0, initial).items()}
    expected = {"wte": 1.0, "wpe": 1.0, "c_attn": 2.0, "c_fc": 2.0, "c_proj": 3.0}
    for name, weight in weights.items():
        if weight.ndim == 2:
            assert (weight == expected[name.split(".")[-2]]).all(), name
        elif name.endswith("bias"):
            assert (weight == 0).all()
        else:
            assert (weight == 1).all()


def test_padding_rows_stay_zero():
    with torch.device("meta"):
        model = BertForPreTraining(
            BertConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
        )
    fill_blanks(model, torch.device("cpu"))
    initial = InitialParams(embeddings=DistributionParams(kind="normal", std=1.0))
    words = initial_weights(model, segments_of(model), 0, 0, initial)["bert.embeddings.word_embeddings.weight"]
    assert (words[0] == 0).all() and (words[1] != 0).all()


def test_outputs_of_an_unknown_model():
    initial = InitialParams(outputs=DistributionParams(kind="normal", std=1.0))
    with pytest.raises(UserError, match=r"model\.initial\.outputs: .* not for t5"):
        distribution_of("a.weight", torch.zeros(2, 2), torch.nn.Linear(2, 2), "t5", initial)


@pytest.mark.parametrize("keys", [{"kind": "normal"}, {"std": 1.0, "scale": 1.0}, {"kind": "uniform", "low": 1.0}])
def test_what_makes_no_distribution(keys):
    with pytest.raises(ValueError, match="should"):
        DistributionParams(**keys)
