"""Hugging Face folders as they are found: names of other versions, parts of models, shards, 16-bit files, damage."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from models import FAMILIES, batch, make
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
    GPT2Model,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    T5EncoderModel,
)

import headrace
from headrace.errors import UserError
from headrace.models.blank import fill_blanks
from headrace.models.build import build_model
from headrace.models.folder import FolderWeights, open_weights

TRANSFORMERS = [family for family in FAMILIES if family != "hand_written"]


def saved(family: str, folder: Path, **how) -> PreTrainedModel:
    """A small model with random weights, norms and biases too, in a folder."""
    model = make(family, 0.0)
    assert isinstance(model, PreTrainedModel)
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.05)
    if dtype := how.pop("dtype", None):
        model = model.to(dtype)
    model.save_pretrained(folder, **how)
    return model.float().eval()


def opened(model: PreTrainedModel, folder: Path) -> FolderWeights:
    """The folder's weights for a model of this class; every one is read and compared with the given model's."""
    with torch.device("meta"):
        blank = type(model)(model.config)
    fill_blanks(blank, torch.device("cpu"))
    weights = open_weights(folder, blank)
    for name, parameter in model.named_parameters():
        if name in weights.stored:
            into = torch.full(parameter.shape, torch.nan)
            weights.read(name, into)
            assert torch.equal(into, parameter), name
    return weights


def rewrite(folder: Path, change) -> None:
    """change: name -> its names in the file, none to leave it out."""
    tensors = load_file(folder / "model.safetensors")
    changed = {new: tensor.clone() for name, tensor in tensors.items() for new in change(name)}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})


def stream(folder, tmp_path, **settings):
    usual = {"optimizer": headrace.AdamW(lr=1e-3), "placement": "disk", "batch": (8, 12), "store": tmp_path / "store"}
    return headrace.stream(folder, **usual | settings)


def assert_same_loss(made, plain: PreTrainedModel, family: str) -> None:
    inputs = batch(family, 3)
    with made.evaluating() as module, torch.no_grad():
        assert module(**inputs).loss == plain(**inputs).loss


@pytest.mark.parametrize("how", ["one file", "shards", "bf16", "fp16"])
@pytest.mark.parametrize("family", TRANSFORMERS)
def test_every_family_is_read_exactly(tmp_path, family, how):
    settings = {
        "shards": {"max_shard_size": "50KB"},
        "bf16": {"dtype": torch.bfloat16},
        "fp16": {"dtype": torch.float16},
    }
    model = saved(family, tmp_path / "plain", **settings.get(how, {}))
    assert len(list((tmp_path / "plain").glob("*.safetensors"))) == 1 or how == "shards"
    weights = opened(model, tmp_path / "plain")
    assert (weights.new, weights.left) == ((), ())
    made = stream(tmp_path / "plain", tmp_path)
    assert_same_loss(made, model, family)
    made.step(batch(family, 1))
    made.save(tmp_path / "out")
    made.close()
    again, info = type(model).from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    assert again.dtype == torch.float32 and again.config.architectures == [type(model).__name__]
    assert AutoConfig.from_pretrained(tmp_path / "out").use_cache == make(family, 0.0).config.use_cache


def without_prefix(name):
    """As the published gpt2, with the masks that it holds as tensors."""
    return [name.removeprefix("transformer."), *["h.0.attn.bias"] * name.endswith("wpe.weight")]


RENAMED = {
    "gpt2": without_prefix,
    "gptj": lambda name: [name.removeprefix("transformer.")],
    "gpt_neox": lambda name: (
        [name.replace("embed_out", "lm_head")]
        + ["gpt_neox.layers.0.attention.rotary_emb.inv_freq"] * ("embed_in" in name)
    ),
    "bert": lambda name: (
        [name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")]
        + ["bert.embeddings.position_ids"] * ("token_type" in name)
    ),
    "t5": lambda name: (
        [name] + ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"] * (name == "shared.weight")
    ),
    "llama": lambda name: [name] + ["model.layers.0.self_attn.rotary_emb.inv_freq"] * ("embed_tokens" in name),
}


@pytest.mark.parametrize("family", RENAMED)
def test_names_of_older_files_are_known(tmp_path, family):
    model = saved(family, tmp_path)
    before = load_file(tmp_path / "model.safetensors").keys()
    rewrite(tmp_path, RENAMED[family])
    assert load_file(tmp_path / "model.safetensors").keys() != before
    weights = opened(model, tmp_path)
    assert (weights.new, weights.left) == ((), ())


@pytest.mark.parametrize("kept", [["transformer.wte.weight", "lm_head.weight"], ["lm_head.weight"]])
def test_a_tied_weight_is_taken_from_whichever_name_holds_it(tmp_path, kept):
    model = saved("gpt2", tmp_path)
    rewrite(tmp_path, lambda name: kept if name == "transformer.wte.weight" else [name])
    weights = opened(model, tmp_path)
    assert (weights.new, weights.left) == ((), ())


def test_what_a_folder_lacks_begins_anew(tmp_path):
    """An encoder without its heads, and heads that another model has."""
    model = saved("bert", tmp_path / "whole")
    assert isinstance(model, BertForPreTraining)
    model.bert.save_pretrained(tmp_path / "encoder")
    made = stream(tmp_path / "encoder", tmp_path)
    assert isinstance(made.model, BertForPreTraining)
    head = next(i for i, segment in enumerate(made.segments) if segment.name == "head")
    ours, fresh = made.store.weights(head), build_model(lambda: BertForPreTraining(model.config), 0)
    assert torch.equal(ours["bert.pooler.dense.weight"], model.get_parameter("bert.pooler.dense.weight"))
    for name in ("cls.predictions.transform.dense.weight", "cls.seq_relationship.weight", "cls.predictions.bias"):
        assert torch.equal(ours[name], fresh.get_parameter(name)), name
    made.close()

    config = json.loads((tmp_path / "whole" / "config.json").read_text())
    config["architectures"] = ["BertForSequenceClassification"]
    (tmp_path / "whole" / "config.json").write_text(json.dumps(config))
    inputs = {"input_ids": torch.ones(4, 6, dtype=torch.int64), "labels": torch.tensor([0, 1, 0, 1])}
    with stream(tmp_path / "whole", tmp_path, batch=inputs) as made:
        assert type(made.model).__name__ == "BertForSequenceClassification"
        made.step(inputs)


def test_a_base_model_gets_the_head_that_it_is_trained_with(tmp_path):
    """Tied, so nothing is new."""
    model = saved("gpt2", tmp_path / "whole")
    model.base_model.save_pretrained(tmp_path / "base")
    assert AutoConfig.from_pretrained(tmp_path / "base").architectures == ["GPT2Model"]
    made = stream(tmp_path / "base", tmp_path)
    assert_same_loss(made, model, "gpt2")
    made.close()

    def loss(module, inputs):
        return module(inputs["input_ids"]).last_hidden_state.square().mean()

    with stream(tmp_path / "base", tmp_path, loss=loss) as made:
        assert isinstance(made.model, GPT2Model)
        first = made.step(batch("gpt2", 0))
        assert made.step(batch("gpt2", 0)) < first


def test_what_is_new_and_what_is_left_is_said(tmp_path):
    model = saved("bert", tmp_path)
    rewrite(
        tmp_path, lambda name: [] if name.startswith("bert.pooler") else [name, *["extra." + name] * ("cls" in name)]
    )
    assert opened(model, tmp_path).summary() == (
        f"{tmp_path}: 60 weights loaded; 2 are not in its files: bert.pooler.dense.weight, bert.pooler.dense.bias; 7 of its "
        f"tensors have no place in the model: extra.cls.predictions.bias, extra.cls.predictions.transform.LayerNorm.bias, "
        f"extra.cls.predictions.transform.LayerNorm.weight and 4 more"
    )
    with pytest.raises(UserError, match=r"2 are not in its files: bert\.pooler"):
        open_weights(tmp_path, model, complete=True)


def test_a_model_is_read_into_its_base_and_its_parts(tmp_path):
    bert, t5 = saved("bert", tmp_path / "bert"), saved("t5", tmp_path / "t5")
    for kind, whole, folder in (
        (BertModel, bert.base_model, "bert"),
        (BertForMaskedLM, bert, "bert"),
        (T5EncoderModel, t5, "t5"),
    ):
        part = kind(whole.config)
        part.load_state_dict({n: w for n, w in whole.state_dict().items() if n in part.state_dict()}, strict=False)
        weights = opened(part, tmp_path / folder)
        assert weights.new == (), kind
        assert all(name.startswith(("cls.", "bert.pooler", "decoder.", "lm_head")) for name in weights.left)


def test_folders_that_cannot_be_read_are_refused(tmp_path):
    def refused(expected, name, change):
        shutil.copytree(tmp_path / "good", tmp_path / name)
        change(tmp_path / name)
        with pytest.raises(UserError, match=expected):
            stream(tmp_path / name, tmp_path)

    def bin_only(folder):
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        for path in folder.glob("*.safetensors*"):
            path.unlink()

    def shard_missing(folder):
        sorted(folder.glob("*.safetensors"))[1].unlink()

    def cut_short(folder):
        path = sorted(folder.glob("*.safetensors"))[0]
        path.write_bytes(path.read_bytes()[:-100])

    def no_header(folder):
        sorted(folder.glob("*.safetensors"))[0].write_bytes(b"<html>not found</html>")

    def no_map(folder):
        (folder / "model.safetensors.index.json").write_text("[]")

    def other_shape(folder):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 310}))

    def other_model(folder):
        make("llama", 0.0).config.save_pretrained(folder)

    def whole_numbers(folder):
        path = sorted(folder.glob("*.safetensors"))[0]
        save_file({name: tensor.to(torch.int8) for name, tensor in load_file(path).items()}, path)

    model = saved("gpt2", tmp_path / "good", max_shard_size="50KB")
    refused(r"pytorch_model\.bin, and only safetensors.*GPT2LMHeadModel\.from_pretrained", "bin", bin_only)
    refused(r"safetensors: is missing, and .* names it; the download is not complete", "missing", shard_missing)
    refused(r"ends at byte [\d,]+, [\d,]+ expected; the download is not complete", "short", cut_short)
    refused("damaged: it does not begin as a safetensors file does", "html", no_header)
    refused("damaged: no JSON with a weight_map", "map", no_map)
    refused(r"transformer.wte.weight is \(311, 48\) F32, but .* is \(310, 48\)", "shape", other_shape)
    refused(r"none of its tensors \(.*\) is a weight of LlamaForCausalLM .*another model\?", "other", other_model)
    refused("I8, but .*to be read from F32, BF16, F16", "int8", whole_numbers)


def test_weights_that_transformers_puts_together_are_refused_with_a_way_out(tmp_path):
    config = MixtralConfig(
        vocab_size=311,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        intermediate_size=48,
        num_local_experts=2,
    )
    model = MixtralForCausalLM(config).eval()
    model.save_pretrained(tmp_path / "parts")
    with pytest.raises(UserError, match=r"parts of weights.*save_original_format=False"):
        stream(tmp_path / "parts", tmp_path)
    model.save_pretrained(tmp_path / "whole", save_original_format=False)
    weights = opened(model, tmp_path / "whole")
    assert (weights.new, weights.left) == ((), ())
    with pytest.raises(UserError, match=r"MixtralForCausalLM: what a microbatch takes could not be measured"):
        stream(tmp_path / "whole", tmp_path)


def test_what_is_saved_is_streamed_again(tmp_path):
    made = stream(AutoConfig.for_model("gpt_neox", **SMALL), tmp_path)
    made.step(batch("gpt_neox", 0))
    made.save(tmp_path / "out")
    expected = made.evaluate(batch("gpt_neox", 1))
    made.close()
    with stream(tmp_path / "out", tmp_path) as again:
        assert again.evaluate(batch("gpt_neox", 1)) == expected
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")


SMALL = {
    "vocab_size": 311,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
