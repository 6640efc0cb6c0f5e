"""What a run begins with and what it leaves: load_checkpoint_states, autoload_last_checkpoint, save_initial_checkpoint."""

import re

import pytest
import torch
from eras import PT_BERT, SHRUNK
from record_files import VOCABULARY_SIZE, bert_arrays, write
from run_by_command import checkpoints, do, metrics, numbers
from safetensors.torch import load_file

from headrace.errors import UserError
from headrace.modelzoo.run.flags import parse
from headrace.modelzoo.run.job import jobs_of, states_of


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """begin(name, *words): train in root/name, and root."""
    root = tmp_path_factory.mktemp("checkpoints")
    write(root / "data" / "examples.tfrecords", bert_arrays(30, 24))
    (root / "params.yaml").write_text(
        PT_BERT.replace("Dynamic", "").replace("MaskDataProcessor", "DataProcessor"), "utf-8"
    )
    data = [
        f"train_input.data_dir={root / 'data'}",
        "train_input.batch_size=4",
        "train_input.max_sequence_length=24",
        "train_input.max_predictions_per_seq=4",
        f"model.vocab_size={VOCABULARY_SIZE}",
        "model.max_position_embeddings=24",
        "runconfig.log_steps=1",
        *SHRUNK,
    ]

    def words(name, *more):
        return ("-m", "train", "-p", root / "params.yaml", "-o", root / name, *data, *more)

    do(*words("first", "--max_steps", 3))
    return root, words


def moments(model_dir):
    found = {}
    for path in sorted((model_dir / "model" / "optimizer").glob("*.safetensors")):
        found |= load_file(path)
    return found


def test_states_of_a_checkpoint_are_taken_one_by_one(begin):
    """Each beginning is told from the whole state: by its first step's number, batch, rate and moments."""
    root, words = begin
    whole = ["model", "optimizer", "global_step", "lr_scheduler", "dataloader", "grad_scaler"]

    def first_step(name, states):
        asked = ["--load_checkpoint_states", ",".join(states)] if states else []
        until = 4 if "global_step" in states or not states else 1
        do(*words(name, "--max_steps", until, "--checkpoint_path", root / "first", *asked))
        return metrics(root / name)[0]

    everything = first_step("everything", [])
    first_step("by_name", whole)
    first_step("by_name", whole)
    assert numbers(root / "by_name") == numbers(root / "everything") and everything["step"] == 4
    anew = first_step("no_data", [state for state in whole if state != "dataloader"])
    start = metrics(root / "first")[0]
    assert anew["step"] == 4 and anew["batch"] == start["batch"] != everything["batch"]
    assert anew["learning_rate"] == everything["learning_rate"]
    for name, states in (("weights", ["model"]), ("with_moments", ["model", "optimizer"])):
        found = first_step(name, states)
        assert (found["step"], found["batch"], found["learning_rate"]) == (1, start["batch"], 0.0)
    unlike = [not torch.equal(a, moments(root / "with_moments")[name]) for name, a in moments(root / "weights").items()]
    assert any(unlike)
    stepped = first_step("steps", ["model", "global_step", "lr_scheduler"])
    assert stepped["step"] == 4 and stepped["loss"] == anew["loss"]


def test_states_that_cannot_be_taken_apart_are_named():
    for written, expected in (
        ("model,weights", "no such state: weights"),
        ("optimizer", "without model"),
        ("model,global_step", "global_step and lr_scheduler go together"),
    ):
        with pytest.raises(UserError, match=re.escape(expected)):
            states_of(written)
    assert states_of("all") == states_of(None) and len(states_of(None)) == 6


def test_without_autoload_a_run_begins_anew_and_loses_nothing(begin, printed):
    root, words = begin
    do(*words("again", "--max_steps", 2))
    before = numbers(root / "again")
    do(*words("again", "--max_steps", 2))
    assert "Training: done" in printed()
    do(*words("again", "--max_steps", 2, "runconfig.autoload_last_checkpoint=False", "runconfig.seed=7"))
    assert [each["step"] for each in metrics(root / "again")] == [1, 2] and numbers(root / "again") != before
    assert numbers(root / "again" / "before-1") == before and checkpoints(root / "again" / "before-1") == [2]
    assert (root / "again" / "before-1" / "model" / "config.json").is_file()


def test_an_initial_checkpoint_is_written_and_kept(begin):
    root, words = begin
    do(*words("initial", "--max_steps", 2, "runconfig.save_initial_checkpoint=True", "runconfig.checkpoint_steps=1"))
    assert checkpoints(root / "initial") == [0, 1, 2]
    do(*words("not_initial", "--max_steps", 2))
    assert numbers(root / "initial") == numbers(root / "not_initial")
    rest = words("rest", "--max_steps", 2, "--checkpoint_path", root / "initial" / "checkpoints" / "step-00000000")
    do(*rest)
    assert numbers(root / "rest") == numbers(root / "initial")


def test_a_checkpoint_by_the_tools_name(begin):
    root, words = begin
    (job,) = jobs_of(parse([str(each) for each in words("x", "--checkpoint_path", root / "first" / "model.ckpt-3")]))
    assert job.checkpoint == root / "first" / "checkpoints" / "step-00000003"
    with pytest.raises(UserError, match="--checkpoint_path"):
        jobs_of(parse([str(each) for each in words("x", "--checkpoint_path", root / "first" / "model.ckpt-4")]))
