"""Checkpoints: plain transformers reads them, training goes on from them exactly, and damage or a full disk is named."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import torch
from transformers import AutoModelForPreTraining, AutoTokenizer

from headrace.errors import UserError
from headrace.optim import LossScale
from headrace.planning.device import Precision
from headrace.run_folder import RunFolder
from headrace.store.snapshot import read_snapshot
from headrace.tasks import masked_lm
from headrace.text.batches import make_batch
from headrace.text.examples import Cursor, every_example
from headrace.training.checkpoint import (
    MANIFEST,
    TrainingState,
    list_checkpoints,
    read_manifest,
    recover,
    write_checkpoint,
)
from headrace.training.setup import build_trainable
from headrace.training.step import train_step

CPU = Precision(torch.device("cpu"), None)
LENGTH = 32


def slabs_of(store):
    """Copies of all weights and moments of a store on the device."""
    return [slab.clone() for state in store.states for slab in (state.weight, *state.state.values())]


class Setting:
    """A run folder of its own, a model that has trained two steps, and batches to go on with."""

    def __init__(self, root, made, tiny_params, kind="sentence_pairs", dropout=0.1):
        self.made, self.run = made, RunFolder(root)
        self.run.create()
        shutil.copytree(made.run.tokenizer, self.run.tokenizer)
        model = {"hidden_dropout": dropout, "attention_dropout": dropout}
        self.params = tiny_params(root, made.params.text.input[0], task={"examples": kind}, model=model)
        shards = made.tokens.shards("train")
        found = list(every_example(shards, masked_lm.example_rule(self.params, LENGTH, "x", 1)))
        rule = masked_lm.batch_rule(self.params, made.vocabulary, LENGTH, 128)
        self.batches = [make_batch(shards, *zip(*found[8 * i : 8 * i + 8], strict=True), rule) for i in range(6)]
        self.trainable = build_trainable(self.params, made.vocabulary, CPU)
        self.steps(0, 2)

    def steps(self, start, stop):
        """Losses of the steps from start to stop."""
        return [
            train_step(
                self.batches[number],
                self.trainable.task,
                self.trainable.model.train(),
                self.trainable.store,
                self.trainable.streaming,
                CPU,
                step=number,
                updates=number,
                lr=1e-3,
                max_norm=1.0,
                loss_scale=LossScale.static(1.0),
            ).loss
            for number in range(start, stop)
        ]

    def write(self, step, keep=3):
        state = TrainingState(step, step, 0, step, Cursor(0, 0, 8 * step))
        return write_checkpoint(self.run, self.trainable.store, self.trainable.config, state, {"a": 1}, keep)

    def slabs(self):
        return slabs_of(self.trainable.store)


@pytest.fixture
def setting(prepared, tiny_params, tmp_path):
    return Setting(tmp_path / "run", prepared(), tiny_params)


@pytest.mark.parametrize("kind", ["sentence_pairs", "documents"])
def test_plain_transformers_loads_the_folder_and_computes_the_same(prepared, tiny_params, tmp_path, kind):
    made = Setting(tmp_path / "run", prepared(), tiny_params, kind)
    made.write(2)
    model, info = AutoModelForPreTraining.from_pretrained(made.run.model, output_loading_info=True)
    assert {name: found for name, found in info.items() if found} == {}
    assert type(model).__name__ == "BertForPreTraining" and not model.training
    assert model.config.vocab_size == made.made.vocabulary.size == 203
    assert model.config.pad_token_id == made.made.vocabulary.pad_id
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight.shape == (203, 32)

    tokenizer = AutoTokenizer.from_pretrained(made.run.model)
    assert len(tokenizer) == 203
    sentences = ["私は図書館で日本語を勉強している。", "The quick dog reads two books at home."]
    inputs = tokenizer(sentences, ["彼女は駅で食べた。", "Nobody forgets."], return_tensors="pt", padding=True)
    assert tokenizer.mask_token_id == made.made.vocabulary.mask_id
    live = made.trainable.model.eval()
    with torch.no_grad():
        ours, theirs = live(**inputs), model(**inputs)
    assert torch.equal(ours.prediction_logits, theirs.prediction_logits)
    assert torch.equal(ours.seq_relationship_logits, theirs.seq_relationship_logits)
    assert theirs.prediction_logits.shape[-1] == 203

    text = made.made.documents[0][0]
    ids = made.made.vocabulary.encode_batch([text])[0]
    assert tokenizer(text)["input_ids"] == [made.made.vocabulary.cls_id, *ids, made.made.vocabulary.sep_id]


def test_training_goes_on_from_a_checkpoint_bit_for_bit(setting, prepared, tiny_params, tmp_path):
    path = setting.write(2)
    losses = setting.steps(2, 6)
    expected = setting.slabs()

    other = Setting(tmp_path / "other", prepared(), tiny_params)
    other.steps(2, 5)  # somewhere else by now
    state = TrainingState.from_state(read_manifest(path)["state"])
    read_snapshot(other.trainable.store, path)
    assert (state.step, state.updates, state.phase_step, state.cursor) == (2, 2, 2, Cursor(0, 0, 16))
    assert other.steps(state.step, 6) == losses
    assert all(torch.equal(a, b) for a, b in zip(other.slabs(), expected, strict=True))


def test_equal_state_gives_equal_files(setting, prepared, tiny_params, tmp_path):
    other = Setting(tmp_path / "other", prepared(), tiny_params)
    a, b = setting.write(2), other.write(2)
    names = sorted(path.relative_to(a).as_posix() for path in a.rglob("*"))
    assert names == sorted(path.relative_to(b).as_posix() for path in b.rglob("*"))
    different = [name for name in names if (a / name).is_file() and (a / name).read_bytes() != (b / name).read_bytes()]
    assert different == []


def test_the_state_survives_json():
    for state in (
        TrainingState(),
        TrainingState(9, 8, 1, 4, Cursor(3, 2, 1), LossScale(scale=2.0**9, good_steps=12)),
    ):
        assert TrainingState.from_state(json.loads(json.dumps(state.state()))) == state


def test_others_may_read_what_the_users_umask_lets_them(setting):
    checkpoint = setting.write(2)
    plain = setting.run.root / "plain"
    plain.touch()
    assert {path.stat().st_mode for path in checkpoint.rglob("*.safetensors")} == {plain.stat().st_mode}


def test_every_file_is_in_the_manifest(setting):
    path = setting.write(2)
    files = {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}
    assert set(read_manifest(path)["files"]) == files - {MANIFEST}
    assert {"config.json", "model.safetensors.index.json", "model-00001-of-00004.safetensors"} < files


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize(
    "name",
    ["config.json", "model-00002-of-00004.safetensors", "optimizer/003-head.exp_avg.safetensors", "tokenizer.json"],
)
def test_a_damaged_file_is_named(setting, name, damage):
    path = setting.write(2)
    file = path / name
    data = bytearray(file.read_bytes())
    if damage == "remove":
        file.unlink()
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data if damage == "flip" else data[:-1])
    reason = {"flip": "its checksum", "truncate": f"{len(data) - 1:,} bytes, {len(data):,}", "remove": "no such file"}
    with pytest.raises(UserError, match=f"^{file}: damaged: {reason[damage]}.*; delete {path} to go on"):
        read_manifest(path)


def test_a_manifest_that_is_no_json_is_named(setting):
    path = setting.write(2)
    (path / MANIFEST).write_text((path / MANIFEST).read_text()[:-10])
    with pytest.raises(UserError, match=f"^{path / MANIFEST}: damaged .*; delete {path} to go on"):
        read_manifest(path)


def test_weights_of_another_model_are_refused_by_name(setting, prepared, tiny_params, tmp_path):
    path = setting.write(2)
    params = tiny_params(
        tmp_path, prepared().params.text.input[0], model={"intermediate_size": 60, "num_hidden_layers": 2}
    )
    store = build_trainable(params, prepared().vocabulary, CPU).store
    with pytest.raises(UserError, match=r"layer\.0\.intermediate\.dense\.weight is \(56, 32\) .*\(60, 32\).* expected"):
        read_snapshot(store, path)
    params = tiny_params(tmp_path, prepared().params.text.input[0], model={"num_hidden_layers": 3})
    store = build_trainable(params, prepared().vocabulary, CPU).store
    with pytest.raises(UserError, match=r"holds no weights for bert\.encoder\.layer\.2\."):
        read_snapshot(store, path)


def test_only_the_newest_are_kept_and_model_points_at_the_last(setting):
    for step in (2, 10, 9_999, 100_000_000):
        path = setting.write(step, keep=2)
        assert setting.run.model.resolve() == path.resolve()
        assert not setting.run.model.readlink().is_absolute(), "a run folder can be moved"
    names = [path.name for path in list_checkpoints(setting.run)]
    assert names == ["step-00009999", "step-100000000"]
    assert sorted(path.name for path in setting.run.checkpoints.iterdir()) == sorted(names)


def test_writing_the_same_step_again_replaces_it(setting):
    setting.write(2)
    setting.steps(2, 3)
    path = setting.write(2)
    read_manifest(path)
    expected = setting.slabs()
    read_snapshot(setting.trainable.store, path)
    assert all(torch.equal(a, b) for a, b in zip(setting.slabs(), expected, strict=True))


def test_what_a_killed_run_left_half_written_is_ignored_and_removed(setting):
    path = setting.write(2)
    aside = setting.run.checkpoints / ".step-00000003.tmp"
    shutil.copytree(path, aside)
    (setting.run.checkpoints / "step-00000004").mkdir()  # no manifest: not complete
    assert list_checkpoints(setting.run) == [path]
    recover(setting.run)
    assert not aside.exists() and list_checkpoints(setting.run) == [path]
    shutil.copytree(path, aside)
    assert setting.write(3).name == "step-00000003"
    assert not aside.exists()


def test_the_link_to_the_newest_is_repaired(setting):
    first, second = setting.write(2), setting.write(3)
    setting.run.model.unlink()
    setting.run.model.symlink_to(first)
    recover(setting.run)
    assert setting.run.model.resolve() == second.resolve()


def check_that_a_refused_write_leaves_all_as_it_was(setting, refusing, reason):
    path = setting.write(2)
    setting.steps(2, 3)
    with (
        refusing,
        pytest.raises(UserError, match=rf"step-00000003: cannot be written \(.*{reason}.*earlier checkpoints"),
    ):
        setting.write(3)
    assert list_checkpoints(setting.run) == [path]
    assert [p.name for p in setting.run.checkpoints.iterdir()] == [path.name]
    read_manifest(path)
    assert setting.run.model.resolve() == path.resolve()
    read_manifest(setting.write(3))


@pytest.mark.parametrize("num_bytes", [1000, 9000, 20_000])
def test_a_file_the_disk_refuses(setting, files_of_at_most, num_bytes):
    """What is cut off: the config, the tokenizer, the weights."""
    check_that_a_refused_write_leaves_all_as_it_was(setting, files_of_at_most(num_bytes), "File too large")


@pytest.mark.parametrize("free_kib", [8, 40, 300])
def test_a_full_disk(setting, prepared, tiny_params, tmp_path, free_kib):
    """On a file system in memory with hardly any space left."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(mounted)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root with CAP_SYS_ADMIN")
    try:
        made = Setting(mounted / "run", prepared(), tiny_params)
        path = made.write(2)
        free = shutil.disk_usage(mounted).free
        filler = mounted / "filler"
        filler.write_bytes(bytes(free - free_kib * 1024))
        with pytest.raises(UserError, match=r"step-00000003: cannot be written .*earlier checkpoints are untouched"):
            made.write(3)
        assert [p.name for p in made.run.checkpoints.iterdir()] == [path.name]
        read_manifest(path)
        filler.unlink()
        read_manifest(made.write(3))
    finally:
        subprocess.run(["umount", "-l", str(mounted)], check=True)


def test_weights_on_disk_are_float32_under_their_hugging_face_names(setting):
    from safetensors import safe_open

    path = setting.write(2)
    index = json.loads((path / "model.safetensors.index.json").read_text())
    total = 0
    for name, file in index["weight_map"].items():
        with safe_open(path / file, framework="np") as opened:
            tensor = opened.get_tensor(name)
        assert tensor.dtype == np.float32
        total += tensor.nbytes
    assert index["metadata"]["total_size"] == total == 4 * sum(p.numel() for p in setting.trainable.model.parameters())
