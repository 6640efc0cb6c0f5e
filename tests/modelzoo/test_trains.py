"""Each kind of file, shrunk by overrides, trains two steps: pretraining in the project's own step, fine-tuning on the
module with its own loss."""

import numpy as np
import pytest
import torch
from eras import ERAS, SHRUNK, TF_BERT, TF_CLASSIFIER
from test_shared_files import EXPECTED, FILES

import headrace
from headrace.modelzoo.params import translate
from headrace.modelzoo.params.build import new_model
from headrace.optim import learning_rate
from headrace.planning.device import Precision
from headrace.text.batches import Batch, Microbatch
from headrace.training.setup import build_trainable, initial_loss_scale
from headrace.training.step import train_step

CPU = Precision(torch.device("cpu"), None)
LENGTH, EXAMPLES = 16, 4


def shrunk(path, rotary):
    """The translation with few small layers; a head of 16 rotates 8 of its dimensions."""
    more = ["model.rotary_dim=8"] if rotary else []
    return translate(path, [*SHRUNK, *more])[0]


def random_batch(params, draw):
    """Random ids: every slot a token, three targets a row for BERT, all for a GPT."""
    vocabulary = params.model.config["vocab_size"]
    bert, pairs = params.task.kind == "masked_lm", params.task.examples == "sentence_pairs"
    ids = draw.integers(5, vocabulary, (EXAMPLES, LENGTH))
    places = np.array([[1, 5, 9]] if bert else [range(LENGTH)]).repeat(EXAMPLES, 0)
    targets = (places + np.arange(EXAMPLES)[:, None] * LENGTH).ravel()
    microbatch = Microbatch(
        input_ids=ids,
        token_type_ids=np.zeros_like(ids),
        position_ids=np.tile(np.arange(LENGTH), (EXAMPLES, 1)),
        example_ids=np.ones((EXAMPLES, LENGTH), np.int32),
        target_positions=targets,
        target_ids=draw.integers(5, vocabulary, len(targets)),
        first_positions=np.arange(EXAMPLES) * LENGTH,
        labels=draw.integers(0, 2, EXAMPLES) if pairs else np.zeros(0, np.int64),
        packed=False,
    )
    return Batch(
        [microbatch], EXAMPLES, len(targets), len(microbatch.labels), EXAMPLES * LENGTH**2, 0,
        loss_per_example=params.task.loss_per == "example", loss_weight=params.task.loss_weight,
    )  # fmt: skip


def pretrain(translation):
    """Losses of two steps on random ids through `train_step`, at the rates of steps 1 and 2."""
    params = translation.params
    trainable = build_trainable(params, None, CPU)
    draw, scale, losses = np.random.default_rng(0), initial_loss_scale(params, CPU), []
    trainable.model.train()
    before = {name: p.detach().clone() for name, p in trainable.model.named_parameters() if p.requires_grad}
    for step in (0, 1):
        result = train_step(
            random_batch(params, draw), trainable.task, trainable.model, trainable.store, trainable.streaming, CPU,
            step=step, updates=step, lr=learning_rate(params.training.learning_rate, step + 1, params.training.schedule_clock),
            max_norm=params.training.optimizer.max_gradient_norm, loss_scale=scale,
        )  # fmt: skip
        assert result.updated
        losses.append(result.loss)
    after = dict(trainable.model.named_parameters())
    assert any(not torch.equal(before[name], after[name]) for name in before)
    trainable.close()
    return losses


def fine_tune(translation):
    model, head = new_model(translation), translation.fine_tuning
    ids = torch.randint(5, translation.params.model.config["vocab_size"], (EXAMPLES, LENGTH))
    batch = {"input_ids": ids}
    if head.job == "qa":
        batch |= {
            "start_positions": torch.randint(0, LENGTH, (EXAMPLES,)),
            "end_positions": torch.randint(0, LENGTH, (EXAMPLES,)),
        }
    elif head.model_class == "BertForTokenClassification":
        batch["labels"] = torch.randint(0, head.num_labels, (EXAMPLES, LENGTH))
    else:
        batch["labels"] = torch.randint(0, head.num_labels, (EXAMPLES,))
    optimizer = translation.params.training.optimizer
    streamed = headrace.stream(
        model,
        optimizer=headrace.AdamW(lr=1e-4, betas=optimizer.betas, eps=optimizer.eps, weight_decay=optimizer.weight_decay,
                                 max_norm=optimizer.max_gradient_norm, no_decay=optimizer.no_decay),
        batch=batch,
    )  # fmt: skip
    return [streamed.step(batch) for _ in range(2)]


def trains(translation):
    losses = pretrain(translation) if translation.fine_tuning is None else fine_tune(translation)
    assert len(losses) == 2 and all(np.isfinite(losses))
    return losses


@pytest.mark.parametrize("era", ERAS)
def test_each_generation_trains_two_steps(tmp_path, era):
    path = tmp_path / "params.yaml"
    path.write_text(ERAS[era], "utf-8")
    translation = shrunk(path, "rotary_dim" in ERAS[era])
    losses = trains(translation)
    task, vocabulary = translation.params.task, translation.params.model.config["vocab_size"]
    # New weights know nothing: ln V a target, ln 2 a pair.
    expected = np.log(vocabulary) * task.loss_weight
    if task.loss_per == "example":
        expected *= 3 if task.kind == "masked_lm" else LENGTH
    if task.examples == "sentence_pairs":
        expected += np.log(2)
    assert losses[0] == pytest.approx(expected, rel=0.05)


def test_fine_tuning_trains_two_steps(tmp_path):
    path = tmp_path / "bert" / "tasks" / "sst2" / "configs" / "params.yaml"
    path.parent.mkdir(parents=True)
    (tmp_path / "bert" / "configs").mkdir()
    (tmp_path / "bert" / "configs" / "pretraining.yaml").write_text(TF_BERT, "utf-8")
    path.write_text(TF_CLASSIFIER, "utf-8")
    trains(shrunk(path, False))


@pytest.mark.skipif(not EXPECTED, reason="the files are not there: set MODELZOO_PARAMS")
@pytest.mark.parametrize("expected", EXPECTED, ids=[each["file"] for each in EXPECTED])
def test_each_file_trains_two_steps(expected):
    trains(shrunk(FILES / expected["file"], expected["family"] in ("gptj", "gpt_neox")))
