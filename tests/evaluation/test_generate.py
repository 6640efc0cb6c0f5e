"""What a model writes: transformers' own greedy text, the same when weights are read for every token, and draws by rule."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from headrace.errors import UserError
from headrace.evaluation.folder_model import least_bytes
from headrace.evaluation.generate import choose, next_tokens, open_writer
from headrace.models.build import build_model, model_config
from headrace.models.segments import segments_of
from headrace.params import ModelParams
from headrace.store.files import pages
from headrace.tasks import causal_lm

SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 56}
MODELS = {
    "gpt2": {"preset": "gpt2-tiny", **SMALL, "max_position_embeddings": 64},
    "gptj": {"preset": "gpt-j-6b", **SMALL},
    "gpt_neox": {"preset": "gpt-neox-20b", **SMALL},
    "llama": {"config": {"model_type": "llama", **SMALL, "initializer_range": 0.3}},
}
PROMPT = "the cat サ"


def save(folder: Path, family: str) -> PreTrainedModel:
    """A model with weights large enough to write something, and a byte-level tokenizer whose token 256 ends texts."""
    settings = dict(MODELS[family])
    if "preset" in settings:
        settings["initializer_range"] = 0.3
    config = model_config(ModelParams(**settings), 257, 256, 256)
    model = build_model(lambda: AutoModelForCausalLM.from_config(config), 5)
    model.save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>").save_pretrained(folder)
    return model.eval()


def written(folder: Path, max_tokens=30, memory_bytes=None, **how) -> str:
    return "".join(open_writer(folder, memory_bytes, 100).write(PROMPT, max_tokens, **how))


def theirs(folder: Path, max_tokens=30) -> str:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=max_tokens, do_sample=False, pad_token_id=256)[0]
    return tokenizer.decode(ids, skip_special_tokens=True)[len(PROMPT) :]


@pytest.mark.parametrize("family", MODELS)
def test_greedy_text_is_transformers_own(tmp_path, family):
    save(tmp_path, family)
    expected = theirs(tmp_path)
    assert len(set(expected)) > 1
    assert written(tmp_path) == expected


@pytest.mark.parametrize("family", MODELS)
def test_text_does_not_depend_on_where_the_weights_are(tmp_path, family):
    save(tmp_path, family)
    expected = written(tmp_path)
    segments = segments_of(AutoModelForCausalLM.from_pretrained(tmp_path))
    total = sum(pages(4 * sum(p.numel() for p in segment.parameters.values())) for segment in segments)
    kept = 8 * 3 * 32 * 100
    least = least_bytes(segments) + kept
    seen = []
    for memory_bytes in (total + kept, (total + kept + least) // 2, least):
        writer = open_writer(tmp_path, memory_bytes, 100)
        seen.append(writer.opened.placing.placements.count("disk"))
        assert "".join(writer.write(PROMPT, 30)) == expected
        writer.close()
    assert seen[0] == 0 < seen[1] <= seen[2]
    with pytest.raises(UserError, match="its largest part alone takes"):
        open_writer(tmp_path, least - 1, 100)


def test_a_folder_of_the_base_model_alone_is_read_too(tmp_path):
    """As the published gpt2: names without the prefix."""
    save(tmp_path, "gpt2")
    expected = written(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    short = {name.removeprefix("transformer."): w for name, w in weights.items()}
    save_file(short, tmp_path / "model.safetensors", metadata={"format": "pt"})
    least = least_bytes(segments_of(AutoModelForCausalLM.from_pretrained(tmp_path))) + 8 * 3 * 32 * 100
    assert written(tmp_path) == written(tmp_path, memory_bytes=least) == expected


def test_it_ends_before_an_end_of_text_and_where_positions_end(tmp_path):
    save(tmp_path, "gpt2")
    writer = replace(open_writer(tmp_path), end_ids=frozenset())
    ids = writer.encode(PROMPT)
    tokens = list(next_tokens(writer.opened.model, ids, 1000, writer.end_ids, 0.0, 1.0, torch.Generator()))
    assert len(ids) + len(tokens) == 65, "the last one is written and not read"
    first = next(iter(writer.write(PROMPT, 30)))
    ending = replace(writer, end_ids=frozenset(writer.encode(first)[:1]))
    assert "".join(ending.write(PROMPT, 30)) == ""
    with pytest.raises(UserError, match=f"the prompt has {64 + len(ids)} tokens and the model reads at most 64"):
        list(writer.write(PROMPT + 64 * "a", 3))
    with pytest.raises(UserError, match="the prompt holds no token"):
        list(writer.write("", 3))


def test_the_seed_decides_what_is_drawn(tmp_path):
    save(tmp_path, "gpt_neox")
    one = written(tmp_path, temperature=1.0, seed=1)
    assert written(tmp_path, temperature=1.0, seed=1) == one != written(tmp_path, temperature=1.0, seed=2)
    assert written(tmp_path, temperature=5.0, top_p=0.0) == written(tmp_path), "the likeliest alone is left"


def test_draws_follow_temperature_and_top_p():
    logits = torch.tensor([0.5, 0.2, 0.1, 0.15, 0.05]).log()
    source = torch.Generator().manual_seed(0)

    def shares(temperature: float, top_p: float) -> list[float]:
        draws = torch.tensor([choose(logits, temperature, top_p, source) for _ in range(4000)])
        return (torch.bincount(draws, minlength=5) / 4000).tolist()

    assert shares(1.0, 1.0) == pytest.approx([0.5, 0.2, 0.1, 0.15, 0.05], abs=0.03)
    assert shares(1.0, 0.8) == pytest.approx([0.5 / 0.85, 0.2 / 0.85, 0, 0.15 / 0.85, 0], abs=0.03)
    squared = [share**2 for share in (0.5, 0.2, 0.1, 0.15, 0.05)]
    assert shares(0.5, 1.0) == pytest.approx([each / sum(squared) for each in squared], abs=0.03)
    assert choose(logits, 0.0, 1.0, source) == 0


def test_pieces_are_whole_characters(tmp_path):
    """Bytes of a character come as several tokens."""
    save(tmp_path, "gpt_neox")
    pieces = list(open_writer(tmp_path).write(PROMPT, 40, temperature=1.0, seed=3))
    assert len(pieces) > 10 and not any(piece.endswith("\ufffd") for piece in pieces[:-1])


def test_models_and_folders_that_cannot_write_are_refused(tmp_path):
    with pytest.raises(UserError, match="not a Hugging Face model folder"):
        open_writer(tmp_path)
    bert = model_config(ModelParams(), 100, 0)
    bert.save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"task\.kind = 'causal_lm' does not fit model 'bert'"):
        open_writer(tmp_path)
    config = model_config(ModelParams(preset="gpt2-tiny"), 257, 0, 1)
    causal_lm.new_model(config).save_pretrained(tmp_path / "bare")
    with pytest.raises(UserError, match="holds no tokenizer"):
        open_writer(tmp_path / "bare")
