"""A classifier beside a frozen model: what it learns, what its folder is, and what is said of it."""

import json

import pytest
from conftest import sentences, write_rows
from safetensors import safe_open
from transformers import AutoModelForSequenceClassification, pipeline

from headrace.cli.predict_stage import predict_stage
from headrace.cli.stages import run_stages
from headrace.run_folder import RunFolder
from headrace.training.merge import merge
from headrace.training.records import read_records

pytest.importorskip("peft")


def test_an_adapter_learns_from_disk_and_predicts_as_the_pipeline_does(job, tmp_path):
    params = job(
        training={
            "phases": [{"sequence_length": 32, "batch_size": 8, "epochs": 6}],
            "peak_learning_rate": 1e-2,
            "input_workers": 0,
            "lora": {"rank": 4, "dropout": 0.1},
        },
        device={"placement": "disk", "memory": "1GiB"},
    )
    run_stages(params)
    run = RunFolder(params.run.folder)
    assert max(record["eval/accuracy"] for record in read_records(run.evaluations)) > 0.8

    rows = [{"id": i, "text": row["text"]} for i, row in enumerate(sentences(20, seed=2))]
    inputs, output = write_rows(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    predict_stage(params, [str(inputs)], output)
    ours = [json.loads(line)["prediction"] for line in output.read_text("utf-8").splitlines()]
    theirs = pipeline("text-classification", str(run.best))([row["text"] for row in rows])
    assert [each["label"] for each in ours] == [each["label"] for each in theirs]
    assert [each["score"] for each in ours] == pytest.approx([each["score"] for each in theirs], abs=1e-6)

    with safe_open(run.best / "adapter_model.safetensors", "pt") as file:
        names = {name.removeprefix("base_model.model.") for name in file.keys()}  # noqa: SIM118
    in_full = {"classifier.weight", "classifier.bias", "bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert {
        name for name in names if ".lora_" not in name
    } == in_full  # what a masked language model has no weights for
    assert len(names - in_full) == 2 * 2 * 2  # A and B of query and value, in two layers
    merge(run.best, tmp_path / "merged")
    AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    merged = pipeline("text-classification", str(tmp_path / "merged"))([row["text"] for row in rows])
    assert [each["score"] for each in merged] == pytest.approx([each["score"] for each in theirs], abs=1e-5)
