"""From params to a model: sizes as published, weights that depend on (config, seed) alone, segments that hold it all."""

from typing import Any, get_args

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BertForPreTraining, GPT2LMHeadModel, GPTJForCausalLM, GPTNeoXForCausalLM

from headrace.errors import UserError
from headrace.models.build import bert_config, build_bert, build_model, model_config
from headrace.models.presets import PRESETS
from headrace.models.segments import segments_of
from headrace.optim import AdamW
from headrace.params import ModelParams, Params, TaskParams
from headrace.store.layout import CHUNK_ELEMENTS, EVEN_ELEMENTS, layout_of
from headrace.store.store import Store
from headrace.tasks.masked_lm import freeze_unused

SMALL = ModelParams(hidden_size=32, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=40)


def test_presets_have_the_published_numbers_of_parameters():
    """In millions, masked-LM head included, vocabulary of 30,522: github.com/google-research/bert; large: the paper."""
    published = {"tiny": 4.4, "mini": 11.3, "small": 29.1, "medium": 41.7, "base": 110.1, "large": 340}
    assert [f"bert-{name}" for name in published] == [name for name, size in PRESETS.items() if size.family == "bert"]
    for name, millions in published.items():
        config = bert_config(ModelParams(preset=f"bert-{name}"), 30_522, 0)  # pyright: ignore[reportArgumentType]
        with torch.device("meta"):
            model = BertForPreTraining(config)
        parameters = [p for key, p in model.named_parameters() if "seq_relationship" not in key]
        tolerance = 0.05 if name != "large" else 4
        assert sum(map(torch.numel, parameters)) / 1e6 == pytest.approx(millions, abs=tolerance), name


# github.com/openai/gpt-2 and the model cards; gpt3-*: table 2.1 of the paper, to its precision; gpt-j and gpt-neox: their
# model cards. Each with the model's own vocabulary. In millions.
PUBLISHED = {
    "gpt2": (124.4, 0.1, GPT2LMHeadModel),
    "gpt2-medium": (354.8, 0.1, GPT2LMHeadModel),
    "gpt2-large": (774.0, 0.1, GPT2LMHeadModel),
    "gpt2-xl": (1557.6, 0.1, GPT2LMHeadModel),
    "gpt3-xl": (1300, 50, GPT2LMHeadModel),
    "gpt3-2.7b": (2700, 50, GPT2LMHeadModel),
    "gpt3-6.7b": (6700, 50, GPT2LMHeadModel),
    "gpt3-13b": (12_900, 100, GPT2LMHeadModel),
    "gpt-j-6b": (6050.9, 0.1, GPTJForCausalLM),
    "gpt-neox-20b": (20_554.6, 0.1, GPTNeoXForCausalLM),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_gpt_presets_have_the_published_numbers_of_parameters(name):
    millions, tolerance, model_class = PUBLISHED[name]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config(ModelParams(preset=name)))
    assert type(model) is model_class
    assert sum(map(torch.numel, model.parameters())) / 1e6 == pytest.approx(millions, abs=tolerance)
    segments = segments_of(model)
    blocks = [segment.name for segment in segments if segment.name.startswith("block-")]
    assert len(blocks) == PRESETS[name].num_hidden_layers
    assert [segment.name for segment in segments][-1] == "lm_head"


def test_params_and_presets_have_the_same_names():
    [literal, _] = get_args(ModelParams.model_fields["preset"].annotation)
    assert list(get_args(literal)) == list(PRESETS)


SMALL_GPTS = {
    "gpt2": {"preset": "gpt2-tiny", "num_hidden_layers": 2},
    "gptj": {"preset": "gpt-j-6b", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "gpt_neox": {"preset": "gpt-neox-20b", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
    "llama": {
        "config": {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
        | {"intermediate_size": 96}
    },
}


@pytest.mark.parametrize("family", SMALL_GPTS)
def test_a_gpt_made_on_meta_has_transformers_buffers_and_distribution(family):
    config = model_config(ModelParams(**SMALL_GPTS[family]), 301, 0, 1)
    assert (config.model_type, config.vocab_size, config.eos_token_id, config.pad_token_id) == (family, 301, 1, 0)
    model = build_model(lambda: AutoModelForCausalLM.from_config(config), 3).eval()
    torch.manual_seed(0)
    theirs = AutoModelForCausalLM.from_config(config).eval()
    for (name, ours), (other, buffer) in zip(model.named_buffers(), theirs.named_buffers(), strict=True):
        assert name == other and torch.equal(ours, buffer), name
    for name, weight in theirs.named_parameters():
        ours = model.get_parameter(name)
        if weight.ndim == 1:
            assert torch.equal(ours, weight), name
        else:
            assert ours.std().item() == pytest.approx(weight.std().item(), rel=0.06), name
    theirs.load_state_dict(model.state_dict())
    ids = torch.arange(20).reshape(2, 10)
    assert torch.equal(model(ids).logits, theirs(ids).logits)


def test_keys_override_a_gpt_preset_and_reach_its_config():
    keys: dict[str, Any] = {
        "num_hidden_layers": 3,
        "intermediate_size": 100,
        "max_position_embeddings": 77,
        "hidden_dropout": 0.2,
        "attention_dropout": 0.3,
        "layer_norm_eps": 1e-6,
        "initializer_range": 0.5,
    }
    gpt2 = model_config(ModelParams(preset="gpt2", **keys))
    assert (gpt2.n_layer, gpt2.n_inner, gpt2.n_positions, gpt2.resid_pdrop, gpt2.embd_pdrop) == (3, 100, 77, 0.2, 0.2)
    assert (gpt2.attn_pdrop, gpt2.layer_norm_epsilon, gpt2.initializer_range) == (0.3, 1e-6, 0.5)
    neox = model_config(ModelParams(preset="gpt-neox-20b", **keys))
    assert (neox.num_hidden_layers, neox.intermediate_size, neox.max_position_embeddings) == (3, 100, 77)
    assert (neox.hidden_dropout, neox.attention_dropout, neox.layer_norm_eps) == (0.2, 0.3, 1e-6)
    assert neox.rope_parameters["partial_rotary_factor"] == 0.25 and neox.use_parallel_residual
    assert not neox.tie_word_embeddings and neox.vocab_size == 50_432


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (
            {"model_type": "lama"},
            "model.config.model_type = 'lama': transformers knows no such model; did you mean llama?",
        ),
        (
            {"model_type": "llama", "hiden_size": 64},
            "model.config.hiden_size: llama has no such key; did you mean hidden_size?",
        ),
        (
            {"model_type": "llama", "hidden_size": 100, "num_attention_heads": 3},
            "model.config: llama does not take these values: .* not a multiple of the number of attention heads",
        ),
        ({"model_type": "llama", "vocab_size": 7}, "model.config.vocab_size = 7 is less than the vocabulary's 301"),
    ],
)
def test_a_config_that_transformers_does_not_know_is_refused(config, expected):
    with pytest.raises(UserError, match=expected):
        model_config(ModelParams(config=config), 301, 0, 1)


def test_keys_override_the_preset_and_reach_the_config():
    given = ModelParams(
        preset="bert-base",
        hidden_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=100,
        max_position_embeddings=77,
        hidden_dropout=0.2,
        attention_dropout=0.3,
        layer_norm_eps=1e-5,
        initializer_range=0.5,
    )
    config = bert_config(given, 123, 7)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (96, 3, 4)
    assert (config.intermediate_size, config.max_position_embeddings, config.vocab_size) == (100, 77, 123)
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.2, 0.3)
    assert (config.layer_norm_eps, config.initializer_range, config.pad_token_id) == (1e-5, 0.5, 7)
    assert config.hidden_act == "gelu" and config.tie_word_embeddings
    half = bert_config(ModelParams(preset="bert-base", hidden_size=128), 123, 0)
    assert (half.num_attention_heads, half.intermediate_size, half.num_hidden_layers) == (2, 512, 12)


def test_an_impossible_shape_is_refused():
    with pytest.raises(
        UserError, match=r"model\.hidden_size = 100 is not a multiple of model\.num_attention_heads = 3"
    ):
        bert_config(ModelParams(hidden_size=100, num_attention_heads=3), 50, 0)


def test_weights_depend_on_config_and_seed_alone():
    config = bert_config(SMALL, 301, 0)
    torch.manual_seed(1)
    first = build_bert(config, seed=5).state_dict()
    torch.manual_seed(2)
    state = torch.get_rng_state()
    again = build_bert(config, seed=5).state_dict()
    assert torch.equal(torch.get_rng_state(), state), "building a model must not move torch's generator"
    assert all(torch.equal(first[name], again[name]) for name in first)
    other = build_bert(config, seed=6).state_dict()
    same = {name for name in first if torch.equal(first[name], other[name])}
    assert all(name.endswith("bias") or "LayerNorm" in name or "position_ids" in name for name in same)


def test_a_segments_weights_do_not_depend_on_the_other_segments():
    deep = dict(build_bert(bert_config(SMALL, 301, 0), 5).named_parameters())
    shallow = dict(
        build_bert(bert_config(SMALL.model_copy(update={"num_hidden_layers": 1}), 301, 0), 5).named_parameters()
    )
    assert all(torch.equal(weight, deep[name]) for name, weight in shallow.items())
    block = "bert.encoder.layer.{}.attention.self.query.weight"
    assert not torch.equal(deep[block.format(0)], deep[block.format(1)])


def test_initial_weights_have_the_distribution_of_transformers():
    params = SMALL.model_copy(update={"hidden_size": 128, "initializer_range": 0.03})
    model = build_bert(bert_config(params, 1001, 0), 5)
    torch.manual_seed(0)
    theirs = dict(BertForPreTraining(model.config).named_parameters())
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            assert torch.equal(weight, theirs[name]), name  # biases 0, norms 1
            continue
        for each in (weight, theirs[name]):
            assert abs(each.mean().item()) < 6 * 0.03 / each.numel() ** 0.5, name  # 6 standard errors
            assert each.std().item() == pytest.approx(0.03, rel=6 / (2 * each.numel()) ** 0.5), name
    assert not model.bert.embeddings.word_embeddings.weight[0].any(), "[PAD] has no embedding"
    assert torch.isfinite(torch.cat([p.flatten() for p in model.parameters()])).all()


def test_the_output_layer_is_the_word_embeddings():
    model = build_bert(bert_config(SMALL, 301, 0), 5)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert model.cls.predictions.decoder.bias is model.cls.predictions.bias


def test_segments_hold_every_parameter_once_in_forward_order():
    model = build_bert(bert_config(SMALL, 301, 0), 5)
    segments = segments_of(model)
    assert [segment.name for segment in segments] == ["embeddings", "block-000", "block-001", "block-002", "head"]
    names = [name for segment in segments for name in segment.parameters]
    assert names == [name for name, _ in model.named_parameters()]
    ids = [id(parameter) for segment in segments for parameter in segment.parameters.values()]
    assert ids == [id(parameter) for parameter in model.parameters()]


def test_a_model_without_blocks_is_refused():
    with pytest.raises(UserError, match=r"Linear: no nn\.ModuleList of equal blocks was found"):
        segments_of(nn.Linear(3, 3))
    mixed = nn.Module()
    mixed.blocks = nn.ModuleList([nn.Sequential(nn.Linear(3, 3)), nn.Linear(3, 3)])
    mixed.rest = nn.Sequential(nn.Sequential(nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3)))
    with pytest.raises(UserError, match=r"there are blocks, blocks\.0, rest, rest\.0, rest\.1, which are not that"):
        segments_of(mixed)


@pytest.mark.parametrize("pairs", [True, False])
def test_the_store_keeps_values_and_decays_what_bert_decays(pairs):
    model = build_bert(bert_config(SMALL, 301, 0), 5)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    examples: Any = "sentence_pairs" if pairs else "documents"
    freeze_unused(model, Params.model_construct(task=TaskParams(examples=examples)))
    store = Store(segments_of(model), AdamW(), ["bias", "LayerNorm"], torch.device("cpu"))
    entries = {entry.name: entry for layout in store.layouts for entry in layout.entries}
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        unused = name.startswith(("bert.pooler", "cls.seq_relationship")) and not pairs
        assert entries[name].trains is not unused
        assert entries[name].decays == (parameter.ndim == 2)
    assert store.num_parameters == sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    for state in store.states:
        for entry in state.layout.entries:
            parameter = dict(model.named_parameters())[entry.name]
            assert parameter.data_ptr() == entry.view(state.weight).data_ptr()
            if entry.trains:
                assert parameter.grad is not None and parameter.grad.data_ptr() == entry.view(state.gradient).data_ptr()


def test_a_slab_is_cut_where_no_bit_changes():
    """Even parameters begin at multiples of EVEN_ELEMENTS, and only the last chunk holds the others."""
    model = build_bert(bert_config(SMALL, 40_001, 0), 5)
    for segment in segments_of(model):
        layout = layout_of(segment, [])
        assert sum(entry.size for entry in layout.entries) == layout.size
        chunks = list(layout.chunks())
        assert [chunk.start for chunk in chunks] == list(range(0, len(chunks) * CHUNK_ELEMENTS, CHUNK_ELEMENTS))
        for chunk in chunks:
            assert sum(b - a for _, a, b in chunk.pieces) == chunk.stop - chunk.start
            for entry, a, b in chunk.pieces:
                whole = (a, b) == (entry.offset, entry.offset + entry.size)
                assert whole or (a - entry.offset) % EVEN_ELEMENTS == (entry.offset % EVEN_ELEMENTS) == 0
                assert entry.size % EVEN_ELEMENTS == 0 or chunk is chunks[-1]
