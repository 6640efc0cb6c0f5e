"""GPTs through run.py: HDF5, lists of `- trainer:` phases, the metrics of an evaluation, predictions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from record_files import VOCABULARY_SIZE, gpt_arrays, write
from run_by_command import checkpoints, do, metrics, saved_dicts
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

h5py = pytest.importorskip("h5py", reason="needs h5py: pip install 'headrace[modelzoo]'")

TRAINER = """
- trainer:
    init:
      backend: {{backend_type: CPU}}
      model_dir: {folder}/{first_dir}
      seed: 4
      model: &model
        name: gpt3
        vocab_size: {size}
        hidden_size: 32
        num_hidden_layers: 2
        num_heads: 2
        filter_size: 64
        max_position_embeddings: 24
        dropout_rate: 0.0
      optimizer: &optimizer
        AdamW: {{betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}}
      schedulers:
      - LinearLR: {{initial_learning_rate: 0.01, end_learning_rate: 0.001, total_iters: 20}}
      loop: {{max_steps: 3}}
      checkpoint: {{steps: 2, save_initial_checkpoint: true}}
      logging: {{log_steps: 1}}
    fit:
      train_dataloader: &train
        data_processor: GptHDF5MapDataProcessor
        data_dir: {folder}/short
        batch_size: 4
      val_dataloader: &val
        data_processor: GptHDF5MapDataProcessor
        data_dir: {folder}/valid
        batch_size: 4
- trainer:
    init:
      backend: {{backend_type: CPU}}
      model_dir: {folder}/{second_dir}
      seed: 4
      model: *model
      optimizer: *optimizer
      schedulers:
      - LinearLR: {{initial_learning_rate: 0.01, end_learning_rate: 0.001, total_iters: 20}}
      loop: {{max_steps: 5}}
      checkpoint: {{steps: 100}}
      logging: {{log_steps: 1}}
      {callbacks}
    fit:
      train_dataloader:
        data_processor: GptHDF5MapDataProcessor
        data_dir: {folder}/more
        batch_size: 6
      {begins}
    validate:
      val_dataloader: *val
"""
TENSORFLOW = """
train_input:
    data_processor: GptTfRecordsProcessor
    data_dir: '{folder}/pile-like'
    vocab_size: {size}
    max_sequence_length: 24
    batch_size: 5
model:
    hidden_size: 32
    num_hidden_layers: 2
    num_heads: 2
    filter_size: 64
    nonlinearity: 'gelu'
    max_position_embeddings: 24
    layer_norm_epsilon: 1e-5
    loss_scaling: 'batch_size'
    loss_weight: 0.04
optimizer:
    optimizer_type: 'adamw'
    learning_rate: 0.01
runconfig:
    max_steps: 2
"""


def write_hdf5(path: Path, arrays: dict[str, np.ndarray]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.stack([arrays["input_ids"], arrays["input_mask"], arrays["labels"]], 1).astype(np.int32)
    with h5py.File(path, "w") as file:
        file.attrs["n_examples"] = len(data)
        file.create_dataset("data", data=data, chunks=(1, *data.shape[1:]), compression="gzip")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("gpt")
    write_hdf5(root / "short" / "data-0.h5", gpt_arrays(9, seed=1))
    write_hdf5(root / "short" / "data-1.h5", gpt_arrays(8, seed=2))
    write_hdf5(root / "more" / "data-0.h5", gpt_arrays(20, seed=3))
    write_hdf5(root / "valid" / "data-0.h5", gpt_arrays(11, seed=5))
    write(root / "pile-like" / "examples.tfrecords", gpt_arrays(13, seed=4))
    return root


def params(folder: Path, name: str, text: str, **words: str) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text.format(folder=folder, size=VOCABULARY_SIZE, **words), "utf-8")
    return path


def plain(model_dir: Path, arrays: dict[str, np.ndarray], size: int) -> tuple[float, float, list[float]]:
    """Accuracy and mean negative log-likelihood over all counted labels, and each batch's summed one."""
    model = AutoModelForCausalLM.from_pretrained(model_dir / "model").eval()
    right = count = 0
    sums = []
    for start in range(0, len(arrays["input_ids"]) // size * size, size):
        ids, mask, labels = (
            torch.from_numpy(arrays[name][start : start + size]) for name in ("input_ids", "input_mask", "labels")
        )
        with torch.no_grad():
            logits = model(ids).logits[mask > 0]
        sums.append(F.cross_entropy(logits, labels[mask > 0], reduction="sum").item())
        right += int((logits.argmax(-1) == labels[mask > 0]).sum())
        count += int(mask.sum())
    return right / count, sum(sums) / count, sums


def test_phases_of_one_model_dir_go_on_with_each_other(folder, printed):
    """HDF5, three steps and then two on other data, by one command; and again, when there is nothing left to do."""
    path = params(folder, "chained", TRAINER, first_dir="out", second_dir="out", callbacks="", begins="")
    do("-m", "train", "-p", path)
    assert [each["step"] for each in metrics(folder / "out" / "phase-0")] == [1, 2, 3]
    assert checkpoints(folder / "out" / "phase-0") == [0, 2, 3]
    second = metrics(folder / "out" / "phase-1")
    assert [each["step"] for each in second] == [4, 5] and {each["examples"] for each in second} == {6}
    assert second[0]["learning_rate"] == pytest.approx(0.01 - 3 * 0.009 / 20)
    printed()
    do("-m", "train", "-p", path)
    assert printed().count("Training: done") == 2
    do("-m", "eval", "-p", path)
    figures = saved_dicts(printed())
    accuracy, nll, _ = plain(folder / "out" / "phase-1", gpt_arrays(11, seed=5), 4)
    assert figures[5]["eval/accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert figures[5]["eval/lm_perplexity"] == pytest.approx(math.exp(nll), rel=1e-4)
    assert set(figures[5]) == {"eval/accuracy", "eval/lm_perplexity", "loss"}


def test_a_phase_begins_with_the_checkpoint_it_names(folder):
    """By the tool's name for it, before it is there; LoadCheckpointStates takes the weights alone."""
    path = params(
        folder,
        "named",
        TRAINER,
        first_dir="one",
        second_dir="two",
        callbacks="callbacks: [{LoadCheckpointStates: {load_checkpoint_states: model}}]",
        begins=f"ckpt_path: {folder}/one/checkpoint_2.mdl",
    )
    do(
        "-m",
        "train",
        "-p",
        path,
        "1.trainer.init.loop.max_steps=1",
        "1.trainer.init.schedulers.0.LinearLR.initial_learning_rate=0.0",
    )
    assert [each["step"] for each in metrics(folder / "two")] == [1]
    before = AutoModelForCausalLM.from_pretrained(folder / "one" / "checkpoints" / "step-00000002").state_dict()
    after = AutoModelForCausalLM.from_pretrained(folder / "two" / "model").state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


def test_a_tensorflow_gpt_has_bits_per_byte_and_its_loss_weight(folder, printed):
    path, out = params(folder, "tf", TENSORFLOW), folder / "tf"
    do("-m", "train", "-p", path, "-o", out)
    do("-m", "eval", "-p", path, "-o", out, "--eval_steps", 2)
    accuracy, nll, sums = plain(out, {name: values[:10] for name, values in gpt_arrays(13, seed=4).items()}, 5)
    expected = {
        "eval/accuracy": accuracy,
        "eval/bits_per_byte": nll / math.log(2) * 0.29335,  # the tool's figure for the Pile, which data_dir names
        "eval/lm_perplexity": math.exp(nll),
        "loss": 0.04 * sum(sums) / 2 / 5,
    }
    assert saved_dicts(printed())[2] == pytest.approx(expected, rel=1e-4)


def test_predictions_are_the_likeliest_next_tokens(folder, printed):
    path, out = params(folder, "predicted", TENSORFLOW), folder / "predicted"
    do("-m", "train", "-p", path, "-o", out)
    do("-m", "predict", "-p", path, "-o", out, "runconfig.predict_steps=11")
    assert f"Predictions for 11 records: {out / 'predict' / 'predictions.jsonl'}" in printed().replace("\n", "")
    rows = [json.loads(line) for line in (out / "predict" / "predictions.jsonl").read_text("utf-8").splitlines()]
    assert [row["record"] for row in rows] == list(range(11))
    arrays = gpt_arrays(13, seed=4)
    model = AutoModelForCausalLM.from_pretrained(out / "model").eval()
    with torch.no_grad():
        log_shares = model(torch.from_numpy(arrays["input_ids"])).logits.log_softmax(-1).numpy()
    for row in rows:
        k, counts = row["record"], arrays["input_mask"][row["record"]] > 0
        assert row["predicted_ids"] == log_shares[k].argmax(-1)[counts].tolist() and row["num_tokens"] == counts.sum()
        true = log_shares[k][counts, arrays["labels"][k][counts]]
        assert row["log_likelihood"] == pytest.approx(true.mean(), abs=1e-4)
