"""Completions of prompts: the loss is that of the completion alone, and cut texts keep what is to be learnt."""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import write_rows
from transformers import GPT2Config, GPT2LMHeadModel

from headrace.cli.predict_stage import predict_stage
from headrace.cli.stages import run_stages
from headrace.labelled.features import FeatureRule, make_batch
from headrace.progress import console
from headrace.run_folder import RunFolder
from headrace.tasks import completion
from headrace.text.vocabulary import open_vocabulary, train_vocabulary
from headrace.training.records import read_records


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """A folder with a small GPT-2 of random weights and a byte vocabulary."""
    folder = tmp_path_factory.mktemp("decoder")
    vocabulary, _ = train_vocabulary(["x"], folder / "tokenizer", kind="byte", size=0, causal=True)
    torch.manual_seed(0)
    end = vocabulary.sep_id
    config = GPT2Config(vocab_size=vocabulary.size, n_embd=32, n_layer=2, n_head=2, n_positions=64, bos_token_id=end,
                        eos_token_id=end, pad_token_id=vocabulary.pad_id)  # fmt: skip
    GPT2LMHeadModel(config).save_pretrained(folder)
    for path in (folder / "tokenizer").iterdir():
        path.rename(folder / path.name)
    return folder


def params_of(job, decoder, tmp_path):
    rows = [{"prompt": f"{a}+{b}=", "completion": str(a + b)} for a in range(10) for b in range(6)]
    data = {"train": str(write_rows(tmp_path / "sums.jsonl", rows)), "evaluation": [], "held_out": 0.2}
    return job(model={"init_from": str(decoder)}, task={"kind": "causal_lm"}, data=data)


def test_the_loss_is_that_of_the_completion_by_transformers_labels(job, decoder, tmp_path):
    params = params_of(job, decoder, tmp_path)
    vocabulary = open_vocabulary(decoder)
    examples = [
        completion.Example("f:1", "ab", "cde"),
        completion.Example("f:2", "", "xy"),
        completion.Example("f:3", "q", ""),
    ]
    features = completion.features(examples, params, vocabulary, 32, Counter())
    end = vocabulary.sep_id
    model = GPT2LMHeadModel.from_pretrained(decoder).eval()
    nlls = []
    for example, feature in zip(examples, features, strict=True):
        given, [wanted] = vocabulary.encode_batch([example.prompt])[0], vocabulary.encode_batch([example.completion])
        ids = [end, *given, *wanted, end]
        assert feature.rows[0].tolist() == ids[:-1] and feature.target_ids.tolist() == [*wanted, end]
        labels = torch.tensor([[-100] * (1 + len(given)) + [*wanted, end]])
        nlls.append(model(input_ids=torch.tensor([ids]), labels=labels).loss.item() * (len(wanted) + 1))
    batch = make_batch(features, FeatureRule(32, vocabulary.pad_id, 1000, 32))
    assert batch.num_targets == 4 + 3 + 1
    losses = [completion.training_loss(model, m, torch.device("cpu"), batch)[0].item() for m in batch.microbatches]
    assert sum(losses) == pytest.approx(sum(nlls) / 8, rel=1e-5)


def test_what_is_too_long_keeps_its_completion(job, decoder, tmp_path):
    params, vocabulary, notes = params_of(job, decoder, tmp_path), open_vocabulary(decoder), Counter()
    examples = [completion.Example("f:1", "a" * 50, "bcd"), completion.Example("f:2", "aa", "b" * 50)]
    first, second = completion.features(examples, params, vocabulary, 16, notes)
    assert notes == {completion.CUT_PROMPT: 2, completion.CUT_COMPLETION: 1}
    assert len(first.rows[0]) == 16 and len(first.target_ids) == 4 and first.target_positions[-1] == 15
    assert len(second.rows[0]) == 16 and len(second.target_ids) == 16 and second.target_positions[0] == 0


def test_a_run_ends_with_a_perplexity(job, decoder, tmp_path):
    params = params_of(job, decoder, tmp_path)
    run_stages(params)
    first, last = (read_records(RunFolder(params.run.folder).evaluations)[i] for i in (0, -1))
    assert last["eval/perplexity"] == pytest.approx(np.exp(last["eval/loss"]))
    assert last["eval/loss"] < first["eval/loss"] and last["n_predicted_tokens"] > last["n_examples"]


def test_predict_writes_completions(job, decoder, tmp_path):
    """What is written is what transformers' greedy generation writes."""
    params = params_of(job, decoder, tmp_path)
    run_stages(params)
    inputs, output = write_rows(tmp_path / "in.jsonl", [{"prompt": "1+2="}, {"prompt": "5+4="}]), tmp_path / "out.jsonl"
    predict_stage(params, [str(inputs)], output)
    found = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    folder = RunFolder(params.run.folder).best
    model, vocabulary = GPT2LMHeadModel.from_pretrained(folder).eval(), open_vocabulary(folder.resolve())
    for row in found:
        ids = torch.tensor([[vocabulary.sep_id, *vocabulary.encode_batch([row["prompt"]])[0]]])
        written = model.generate(ids, max_new_tokens=32, do_sample=False)[0, ids.shape[1] :].tolist()
        assert row["prediction"]["completion"] == vocabulary.decode(written)


def test_written_completions_are_judged_by_those_that_are_known(job, decoder, tmp_path):
    params = params_of(job, decoder, tmp_path)
    run_stages(params)
    rows = [{"prompt": "1+2=", "completion": "3"}, {"prompt": "5+4="}]
    with console.capture() as captured:
        predict_stage(params, [str(write_rows(tmp_path / "in.jsonl", rows))], tmp_path / "out.jsonl")
    assert "Beside the 1 known completions: exact_match = " in captured.get()
    with console.capture() as captured:
        predict_stage(params, [str(write_rows(tmp_path / "in2.jsonl", rows[1:]))], tmp_path / "out2.jsonl")
    assert "known completions" not in captured.get()


def test_figures_of_written_completions():
    pairs = [("the cat sat", "the cat sat "), ("the cat sat", "a cat stood")]
    found = completion.figures_of_written(pairs, "en")
    assert found == pytest.approx(
        {"exact_match": 0.5, "rouge1": (1 + 1 / 3) / 2, "rouge2": 0.5, "rougeL": (1 + 1 / 3) / 2}
    )
    assert completion.figures_of_written([("東京 です", "東京")], "ja")["rouge1"] == pytest.approx(2 / 3)  # characters
