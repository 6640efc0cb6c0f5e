"""The estimator of source 000's example: trains, goes on from model_dir, evaluates, predicts, and streams."""

from typing import Any

import numpy as np
import pytest
import torch
from record_files import VOCABULARY_SIZE, bert_arrays
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM

import headrace
from headrace.errors import UserError
from headrace.modelzoo import CerebrasEstimator, CSRunConfig, Estimator, EstimatorSpec, RunConfig
from headrace.training.streamed_model import SNAPSHOT

PARAMS = {"cs_ip": "192.168.0.99", "hidden_size": 64, "batch_size": 8}


def config(params) -> BertConfig:
    return BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=params["hidden_size"],
        num_hidden_layers=6,
        num_attention_heads=2,
        intermediate_size=256,
        max_position_embeddings=24,
        architectures=["BertForMaskedLM"],
    )


def model_fn(features, labels, mode, params):
    assert mode in ("train", "eval", "infer")

    def loss(model, features, labels):
        logits = model(**features).logits
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())

    def metrics(model, features, labels):
        right = (model(**features).logits.argmax(-1) == labels)[labels != -100]
        return {"eval/accuracy_masked_lm": right.float().mean()}

    return EstimatorSpec(config(params), headrace.AdamW(lr=1e-2, max_norm=1.0), loss, metrics)


def input_fn(params):
    """Seven batches of masked sentences, the same each time."""
    arrays = bert_arrays(7 * params["batch_size"], 24, seed=3)
    labels = np.full(arrays["input_ids"].shape, -100)
    for k, weights in enumerate(arrays["masked_lm_weights"]):
        live = weights > 0
        labels[k, arrays["masked_lm_positions"][k][live]] = arrays["masked_lm_ids"][k][live]
    for start in range(0, len(labels), params["batch_size"]):
        rows = slice(start, start + params["batch_size"])
        features = {"input_ids": arrays["input_ids"][rows], "attention_mask": arrays["input_mask"][rows]}
        yield {name: torch.from_numpy(value) for name, value in features.items()}, torch.from_numpy(labels[rows])


def weights(folder, step):
    return BertForMaskedLM.from_pretrained(folder / "checkpoints" / f"step-{step:08d}").state_dict()


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The example as it is printed, but for its import line and its number of steps."""
    folder = tmp_path_factory.mktemp("estimator")
    params, cs_config = PARAMS, None
    est_config = CSRunConfig(cs_ip=params["cs_ip"], cs_config=cs_config)
    est = CerebrasEstimator(model_fn=model_fn, model_dir=str(folder), config=est_config, params=params, use_cs=True)
    est.train(input_fn, max_steps=20, use_cs=True)
    return folder


def test_the_names_are_ours_too():
    assert CerebrasEstimator is Estimator and CSRunConfig is RunConfig


def test_training_in_pieces_gives_the_same_weights(trained, tmp_path):
    """Nine steps end inside the second pass over seven batches."""
    for steps in (9, 20):
        Estimator(model_fn, tmp_path, RunConfig(save_checkpoints_steps=5), PARAMS).train(input_fn, max_steps=steps)
    assert same(weights(tmp_path, 20), weights(trained, 20))
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == [
        f"step-{step:08d}" for step in (5, 9, 10, 15, 20)
    ]


def test_streaming_gives_the_same_weights(trained, tmp_path):
    memory = RunConfig(memory="9MiB", microbatch=8)
    estimator = Estimator(model_fn, tmp_path, memory, PARAMS)
    with estimator._open(input_fn, "train") as (model, _):
        assert "disk" in model.store.placements
    estimator.train(input_fn, steps=20)
    assert same(weights(tmp_path, 20), weights(trained, 20))


def test_evaluation_and_prediction_use_the_newest_checkpoint(trained):
    estimator = Estimator(model_fn, trained, params=PARAMS)
    figures = estimator.evaluate(input_fn, steps=3)
    assert figures["global_step"] == 20
    model = BertForMaskedLM.from_pretrained(trained / "checkpoints" / "step-00000020").eval()
    losses, logits = [], []
    for features, labels in list(input_fn(PARAMS))[:3]:
        with torch.no_grad():
            logits.append(model(**features).logits)
        losses.append(F.cross_entropy(logits[-1].flatten(0, 1), labels.flatten()).item())
    assert figures["loss"] == pytest.approx(np.mean(losses), rel=1e-5)
    assert 0 <= figures["eval/accuracy_masked_lm"] <= 1
    predicted = [each["logits"] for each, _ in zip(estimator.predict(input_fn), range(24), strict=False)]
    assert torch.allclose(torch.stack(predicted), torch.cat(logits), atol=1e-5)


def test_once_through_the_input_without_a_number_of_steps(tmp_path):
    Estimator(model_fn, tmp_path, params=PARAMS).train(input_fn)
    assert (tmp_path / "checkpoints" / "step-00000007" / SNAPSHOT).is_file()


def test_what_is_wrong_is_named(tmp_path):
    estimator = Estimator(model_fn, tmp_path, params=PARAMS)
    returns_none: Any = lambda *_: None  # noqa: E731
    for call, expected in (
        (lambda: estimator.evaluate(input_fn), "holds no checkpoint"),
        (lambda: estimator.train(lambda params: [], max_steps=1), "gives no batch"),
        (lambda: estimator.train(input_fn, max_steps=0), "max_steps=0"),
        (lambda: Estimator(returns_none, tmp_path).train(lambda _: input_fn(PARAMS), steps=1), "EstimatorSpec"),
        (lambda: Estimator(model_fn, params=PARAMS).train(input_fn, steps=1), "model_dir"),
    ):
        with pytest.raises(UserError, match=expected):
            call()
