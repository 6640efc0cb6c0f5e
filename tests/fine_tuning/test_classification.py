"""Classification and regression: ours beside a loop written by hand, and predictions beside transformers' pipeline."""

import json
import math

import numpy as np
import pytest
import torch
from conftest import sentences, write_rows
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from headrace.cli.predict_stage import predict_stage
from headrace.cli.stages import run_stages
from headrace.errors import UserError
from headrace.optim import learning_rate
from headrace.planning.device import choose_precision
from headrace.run_folder import RunFolder
from headrace.tasks import classification
from headrace.text.examples import Cursor
from headrace.text.make_vocabulary import make_vocabulary
from headrace.training.checkpoint import list_checkpoints, read_manifest
from headrace.training.labelled_rows import open_labelled
from headrace.training.records import read_records
from headrace.training.setup import build_trainable


def opened(params):
    run = RunFolder(params.run.folder)
    run.create()
    return open_labelled(params, run, make_vocabulary(params, run, [], ""))


def weights_after(params) -> dict[str, torch.Tensor]:
    model = AutoModelForSequenceClassification.from_pretrained(RunFolder(params.run.folder).model)
    return dict(model.named_parameters())


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_training_equals_a_loop_written_by_hand(job, kind):
    """Same rows in the same order, untouched model of transformers, torch's AdamW and clipping."""
    fields = {"fields": {"label": "label" if kind == "classification" else "score"}}
    data = {**job().data.model_dump(mode="json"), **fields}
    params = job(task={"kind": kind}, data=data, model={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    source = opened(params)
    params = source.params
    run_stages(job(task={"kind": kind}, data=data, model={"hidden_dropout": 0.0, "attention_dropout": 0.0}))

    begun = build_trainable(params, source.vocabulary, choose_precision(params))
    model = AutoModelForSequenceClassification.from_config(begun.config).train()
    with torch.no_grad():
        ours = {name: p for segment in begun.store.segments for name, p in segment.parameters.items()}
        for name, parameter in model.named_parameters():
            parameter.copy_(ours[name])
    plain = [p for name, p in model.named_parameters() if "bias" in name or "LayerNorm" in name]
    decayed = [p for name, p in model.named_parameters() if "bias" not in name and "LayerNorm" not in name]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, eps=1e-6, fused=True)
    steps = params.total_steps
    assert steps == 2 * math.ceil(120 / 8)
    batches = source.batches(0, Cursor(), steps, begun.config, 10_000)(0, 1)
    losses, seen = [], 0
    for step, (batch, _) in enumerate(batches):
        total = 0.0
        seen += batch.num_examples
        for microbatch in batch.microbatches:
            mask = torch.from_numpy(microbatch.example_ids > 0).long()
            logits = model(
                input_ids=torch.from_numpy(microbatch.input_ids),
                attention_mask=mask if microbatch.num_tokens < microbatch.num_slots else None,
                token_type_ids=torch.from_numpy(microbatch.token_type_ids),
            ).logits
            labels = torch.from_numpy(microbatch.labels)
            if kind == "classification":
                loss = F.cross_entropy(logits, labels, reduction="sum") / batch.num_examples
            else:
                loss = F.mse_loss(logits[:, 0], labels.float(), reduction="sum") / batch.num_examples
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(params.training.learning_rate, step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    assert seen == 240  # every row twice
    recorded = [record["loss"] for record in read_records(RunFolder(params.run.folder).metrics)]
    np.testing.assert_allclose(recorded, losses, rtol=1e-6)
    found = weights_after(params)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            found[name], parameter, rtol=0, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_run_learns_and_predicts_as_the_pipeline_does(job, tmp_path):
    params = job(training={**job().training.model_dump(mode="json"), "phases": [
        {"sequence_length": 32, "batch_size": 8, "epochs": 12}]})  # fmt: skip
    run_stages(params)
    run = RunFolder(params.run.folder)
    records = read_records(run.evaluations)
    assert len(records) == 12 and records[-1]["n_examples"] == 30
    assert max(record["eval/accuracy"] for record in records) > 0.9
    best = max(records, key=lambda record: (record["eval/accuracy"], -record["step"]))
    assert read_manifest(run.best)["state"]["step"] == best["step"]
    assert run.report.is_file()

    rows = [{"id": i, "text": row["text"]} for i, row in enumerate(sentences(40, seed=2))] + [{"id": 40, "text": ""}]
    inputs, output = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    predict_stage(params, [str(inputs)], output)
    found = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    theirs = pipeline("text-classification", model=str(run.best), tokenizer=AutoTokenizer.from_pretrained(run.best))
    for row, mine, other in zip(rows, found, theirs([row["text"] for row in rows]), strict=True):
        assert {key: mine[key] for key in ("id", "text")} == row
        assert mine["prediction"]["label"] == other["label"]
        assert mine["prediction"]["score"] == pytest.approx(other["score"], abs=1e-5)
    # what was written by a command that was killed stays; the line it was cut in is written anew
    lines = output.read_bytes().splitlines(keepends=True)
    partial = output.with_name("out.jsonl.partial")
    output.rename(partial)
    partial.write_bytes(b"".join(lines[:10]) + lines[10][:7])
    state = {"model": str(run.best.resolve()), "inputs": [[str(inputs), inputs.stat().st_size, _sum(inputs)]]}
    partial.with_name("out.jsonl.partial.json").write_text(json.dumps(state, indent=1))
    marked = json.loads(lines[0]) | {"prediction": {"label": "kept"}}
    partial.write_bytes((json.dumps(marked) + "\n").encode() + b"".join(lines[1:10]) + lines[10][:7])
    predict_stage(params, [str(inputs)], output)
    again = output.read_bytes().splitlines(keepends=True)
    assert json.loads(again[0])["prediction"] == {"label": "kept"} and again[1:] == lines[1:]


def _sum(path) -> str:
    from headrace.text.source import files_of

    return files_of([path])[0][2]


def test_training_stops_when_nothing_gets_better(job):
    """A learning rate of nothing leaves every evaluation as the first: two more, then it stops, and stays stopped."""
    training = {**job().training.model_dump(mode="json"), "learning_rate": 0.0, "peak_learning_rate": None}
    training["phases"] = [{"sequence_length": 32, "batch_size": 8, "epochs": 9}]
    params = job(training=training, evaluation={"patience": 2})
    run_stages(params)
    run = RunFolder(params.run.folder)
    assert [record["step"] for record in read_records(run.evaluations)][:3] == [15, 30, 45]
    assert read_manifest(list_checkpoints(run)[-1])["state"]["step"] == 45
    assert read_manifest(run.best)["state"]["step"] == 15
    run_stages(params)
    assert read_manifest(list_checkpoints(run)[-1])["state"]["step"] == 45


def test_seeds_are_runs_of_their_own(job, capsys):
    training = {**job().training.model_dump(mode="json")}
    training["phases"] = [{"sequence_length": 32, "batch_size": 8, "steps": 4}]
    params = job(run={**job().run.model_dump(mode="json"), "seeds": [1, 2]}, training=training)
    run_stages(params)
    summary = json.loads((params.run.folder / "seeds.json").read_text())
    each = [read_records(params.run.folder / f"seed-{seed}" / "evaluations.jsonl")[-1]["eval/loss"] for seed in (1, 2)]
    assert each[0] != each[1]
    assert summary["figures"]["eval/loss"]["mean"] == pytest.approx(sum(each) / 2)
    assert summary["figures"]["eval/loss"]["deviation"] == pytest.approx(abs(each[0] - each[1]) / math.sqrt(2))


def test_figures_are_those_of_a_hand(job):
    params = job(data={**job().data.model_dump(mode="json"), "labels": ["a", "b", "c"]})
    examples = [classification.Example(f"f:{i}", "", None, label) for i, label in enumerate("aabbcc")]
    features = [classification.Feature((), (), i, "abc".index(str(e.label))) for i, e in enumerate(examples)]
    logits = [np.log(np.array(p)) for p in ([0.8, 0.1, 0.1], [0.2, 0.6, 0.2], [0.1, 0.8, 0.1], [0.3, 0.4, 0.3],
                                            [0.5, 0.25, 0.25], [0.1, 0.1, 0.8])]  # fmt: skip
    guesses = classification.predictions(logits, features, examples, params)
    assert [guess["label"] for guess in guesses] == ["a", "b", "b", "b", "a", "c"]
    figures = classification.figures(logits, guesses, features, examples, params)
    assert figures["eval/accuracy"] == pytest.approx(4 / 6)
    f1 = [2 * 1 / (2 + 2), 2 * 2 / (2 + 3), 2 * 1 / (2 + 1)]  # 2 right / (truths + guesses)
    assert figures["eval/f1_macro"] == pytest.approx(sum(f1) / 3)
    assert figures["eval/loss"] == pytest.approx(-np.mean(np.log([0.8, 0.2, 0.8, 0.4, 0.25, 0.8])))
    assert figures["commonest_label_share"] == pytest.approx(1 / 3)


def test_regression_figures(job):
    params = job(task={"kind": "regression"})
    truth, guess = [1.0, 2.0, 3.0, 4.0], [2.0, 1.0, 4.0, 9.0]
    examples = [classification.Example("f:1", "", None, value) for value in truth]
    features = [classification.Feature((), (), i, value) for i, value in enumerate(truth)]
    found = classification.figures([np.array([value]) for value in guess], [], features, examples, params)
    assert found["eval/spearman"] == pytest.approx(0.8)  # 1 - 6 x (1 + 1 + 0 + 0) / (4 x 15)
    assert found["eval/loss"] == pytest.approx((1 + 1 + 1 + 25) / 4)
    assert found["eval/pearson"] == pytest.approx(np.corrcoef(truth, guess)[0, 1])
    same = classification.figures([np.array([1.0])] * 4, [], features, examples, params)
    assert same["eval/pearson"] is None and same["eval/spearman"] is None


def test_wrong_rows_are_told_with_their_line(job, tmp_path):
    base = job().data.model_dump(mode="json")

    def told(rows, **data) -> str:
        path = write_rows(tmp_path / "wrong.jsonl", rows)
        with pytest.raises(UserError) as error:
            opened(job(data={**base, "train": str(path), **data}))
        return str(error.value)

    good = sentences(4)
    assert "wrong.jsonl:2: there is no field 'label'" in told([good[0], {"text": "x"}])
    assert "wrong.jsonl:1" in told([{"text": "x", "label": ""}])
    same = told([{**row, "label": "one"} for row in good])
    assert "all 4 rows have the label 'one'" in same
    unseen = told([{"text": "x", "label": label} for label in ("p", "q")])
    assert "held_out.jsonl:1: label" in unseen and "none of those that are learnt (p, q)" in unseen
    assert "label 'bad' is none of those" in told(good, labels=["good", "better"])


def test_a_folder_that_was_made_for_something_else_is_refused_with_both_sides(job, tmp_path, pretrained):
    run_stages(job(training={**job().training.model_dump(mode="json"), "phases": [
        {"sequence_length": 32, "batch_size": 8, "steps": 1}]}))  # fmt: skip
    trained = str(tmp_path / "run")

    def told(**sections) -> str:
        with pytest.raises(UserError) as error:
            opened(job(run={"folder": str(tmp_path / "other")}, model={"init_from": trained}, **sections))
        return str(error.value)

    base = job().data.model_dump(mode="json")
    assert "the labels of data are good, bad" in told(data={**base, "labels": ["good", "bad"]})
    regression = told(task={"kind": "regression"}, data={**base, "fields": {"label": "score"}})
    assert "regression" in regression
    with pytest.raises(UserError, match="has a vocabulary of its own"):
        job(text={"vocabulary": {"kind": "byte"}})
    other = tmp_path / "vocab.txt"
    entries = (pretrained / "vocab.txt").read_text("utf-8").split("\n")
    other.write_text("\n".join([*entries[:-2], entries[-1], entries[-2]]), "utf-8")
    params = job(run={"folder": str(tmp_path / "third")}, text={"vocabulary": {"load": str(other)}})
    with pytest.raises(UserError, match=r"2 of \d+ entries differ; id \d+ is 'awful' here and 'great' there"):
        opened(params)
