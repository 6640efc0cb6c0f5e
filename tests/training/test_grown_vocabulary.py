"""A run on text of a domain that starts from another run's model, with a vocabulary that grew."""

import torch
from transformers import AutoTokenizer, BertForPreTraining

from headrace.cli.stages import train_stage
from headrace.params import validate_params
from headrace.planning.device import choose_precision
from headrace.run_folder import RunFolder
from headrace.text.prepare import prepare
from headrace.training.setup import build_trainable

PLAIN = [f"the {noun} {verb} the old {thing}.\nit is {thing} again." for noun in ("dog", "student", "teacher", "doctor")
         for verb in ("sees", "takes", "cures", "hates") for thing in ("house", "pan", "art", "creation")]  # fmt: skip
DOMAIN = [f"acute pancreatitis and chronic arthritis {verb} the {who}." for verb in ("hurt", "tire", "weaken")
          for who in ("dog", "doctor", "student", "teacher")]  # fmt: skip


def prepared(folder, texts, vocabulary, **more):
    folder.mkdir()
    (folder / "in.txt").write_text("\n".join(texts))
    params = validate_params(
        {
            "run": {"folder": folder / "run"},
            "text": {
                "input": str(folder / "in.txt"),
                "format": "document_per_line",
                "language": "en",
                "held_out": 0.0,
                "workers": 1,
                "vocabulary": vocabulary,
            },
            "task": {"examples": "documents"},
            "training": {"phases": [{"sequence_length": 16, "batch_size": 4, "steps": 1}], "learning_rate": 1e-9,
                         "input_workers": 0},
            **more,
        }
    )  # fmt: skip
    run = RunFolder(params.run.folder)
    run.create()
    return params, run, *prepare(params, run)


def test_old_rows_are_the_models_and_new_ones_means_of_theirs(tmp_path):
    size = {"preset": "bert-tiny", "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    vocabulary = {"kind": "wordpiece", "size": 70, "character_coverage": 1.0}
    before_params, before_run, before, _ = prepared(tmp_path / "plain", PLAIN, vocabulary, model=size)
    train_stage(before_params)
    params, run, grown, _ = prepared(
        tmp_path / "domain", DOMAIN, {"extend": 4}, model={"init_from": str(before_run.root)}
    )
    extension = grown.extension
    assert extension is not None and extension.size_before == before.size and grown.size == before.size + 4
    was = BertForPreTraining.from_pretrained(before_run.model.resolve())
    trainable = build_trainable(params, grown, choose_precision(params))
    assert trainable.config.vocab_size == grown.size
    store = trainable.store
    now = {name: value for i in range(len(store.segments)) for name, value in store.weights(i).items()}
    for name, old in was.named_parameters():
        if now[name].shape == old.shape:
            assert torch.equal(now[name], old), name
        else:
            assert torch.equal(now[name][: before.size], old), name
            means = torch.stack([old[list(pieces)].mean(0) for pieces in extension.pieces])
            torch.testing.assert_close(now[name][before.size :], means)
    trainable.close()
    train_stage(params)
    folder = run.model.resolve()
    tokenizer, model = AutoTokenizer.from_pretrained(folder), BertForPreTraining.from_pretrained(folder)
    read = tokenizer("acute pancreatitis tires the dog", return_tensors="pt")
    assert read["input_ids"].max() >= before.size and model(**read).prediction_logits.shape[-1] == grown.size
