"""`headrace.stream` as a user meets it: from a name, a folder, a config, a module; saved, resumed, refused."""

import shutil
import subprocess
import sys

import pytest
import torch
from models import VOCABULARY, HandWritten, batch, make
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config

import headrace
from headrace.errors import UserError

CONFIG = GPT2Config(
    vocab_size=VOCABULARY, n_embd=64, n_layer=4, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
)


def stream(model, folder, **settings):
    usual = {"optimizer": headrace.AdamW(lr=1e-3), "placement": "disk", "batch": (8, 12)}
    return headrace.stream(model, store=folder, **usual | settings)


def flushed(model):
    """Every update that is due is done, and nothing is being fetched."""
    model.streaming.fetcher.rest()
    model.store.flush()
    return True


def steps(model, start, stop):
    return [model.step(batch("gpt2", number)) for number in range(start, stop)]


def test_what_is_saved_is_a_hugging_face_model(tmp_path):
    model = stream(CONFIG, tmp_path / "store")
    steps(model, 0, 2)
    model.save(tmp_path / "out")
    plain, info = AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(info.values())
    inputs = batch("gpt2", 9)
    with model.evaluating() as module, torch.no_grad():
        assert module(**inputs).loss == plain.eval()(**inputs).loss
        written = module.generate(inputs["input_ids"][:2, :5], max_new_tokens=6, do_sample=False, pad_token_id=0)
        assert torch.equal(
            written, plain.generate(inputs["input_ids"][:2, :5], max_new_tokens=6, do_sample=False, pad_token_id=0)
        )
    assert model.model.training
    with pytest.raises(UserError, match="out: exists already"):
        model.save(tmp_path / "out")


def test_saving_copies_nothing_and_later_steps_leave_it_alone(tmp_path):
    model = stream(CONFIG, tmp_path / "store")
    steps(model, 0, 1)
    model.snapshot(tmp_path / "one")
    files = list((tmp_path / "one").rglob("*.safetensors"))
    assert files and all(path.stat().st_nlink == 2 for path in files)
    before = {path: path.read_bytes() for path in files}
    steps(model, 1, 3)
    model.snapshot(tmp_path / "two")
    assert {path: path.read_bytes() for path in files} == before
    assert all(path.stat().st_nlink == 1 for path in files)


@pytest.mark.parametrize(
    ("first", "placement"), [("disk", "disk"), ("disk", "device"), ("disk", "ram"), ("ram", "disk"), ("ram", "device")]
)
def test_a_snapshot_goes_on_exactly_on_any_placement(tmp_path, first, placement):
    model = stream(CONFIG, tmp_path / "store", placement=first)
    steps(model, 0, 2)
    model.snapshot(tmp_path / "snapshot")
    expected = steps(model, 2, 5)
    other = stream(CONFIG, tmp_path / "other", placement=placement, seed=5)
    other.resume(tmp_path / "snapshot")
    assert steps(other, 2, 5) == expected
    weights = [made.store.weights(i) for made in (model, other) if flushed(made) for i in range(8)]
    for ours, theirs in zip(weights[:8], weights[8:], strict=True):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_snapshot_of_another_optimizer_is_refused(tmp_path):
    model = stream(CONFIG, tmp_path / "store", optimizer=headrace.AdamW8bit(lr=1e-3))
    steps(model, 0, 1)
    model.snapshot(tmp_path / "snapshot")
    other = stream(CONFIG, tmp_path / "other", optimizer=headrace.SGD(lr=1e-3))
    with pytest.raises(UserError, match=r"state of 8-bit AdamW .*, and this model is trained with SGD \(exact\)"):
        other.resume(tmp_path / "snapshot")


def test_a_flipped_byte_is_named(tmp_path):
    model = stream(CONFIG, tmp_path / "store")
    steps(model, 0, 1)
    model.snapshot(tmp_path / "snapshot")
    path = sorted((tmp_path / "snapshot" / "optimizer").iterdir())[1]
    data = bytearray(path.read_bytes())
    data[-7] ^= 128
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"{path}: damaged or missing"):
        model.resume(tmp_path / "snapshot")
    with pytest.raises(UserError, match="not a snapshot"):
        model.resume(tmp_path)


@pytest.mark.parametrize("family", ["gpt2", "t5", "bert"])
def test_training_goes_on_from_a_hugging_face_folder(tmp_path, family):
    plain = make(family, 0.0).eval()
    plain.save_pretrained(tmp_path / "plain", max_shard_size="100KB")
    model = stream(str(tmp_path / "plain"), tmp_path / "store")
    inputs = batch(family, 3)
    with model.evaluating() as module, torch.no_grad():
        assert module(**inputs).loss == plain(**inputs).loss


def test_a_module_with_a_loop_of_the_users(tmp_path):
    """`loss` and `backward` apart, in a loop that is not ours."""
    losses = []
    for placement in ("device", "disk"):
        torch.manual_seed(0)
        inputs = batch("hand_written", 1)
        model = stream(HandWritten(0.0), tmp_path / placement, placement=placement, microbatch=4)
        losses.append([])
        for _ in range(3):
            loss = model.loss(inputs)
            loss.backward()
            model.update()
            losses[-1].append(loss.item())
    assert losses[0] == losses[1] and losses[0][2] < losses[0][0]
    assert "StreamedSegment" in repr(model.model)


def test_weights_are_fetched_twice_a_step_whatever_the_number_of_microbatches(tmp_path):
    """1, 2, 8 and 32 microbatches; the head, whose backward follows its forward, once."""
    moved = set()
    inputs = [batch("gpt2", number, examples=32) for number in range(3)]
    for microbatch in (32, 16, 4, 1):
        with stream(
            CONFIG, tmp_path / str(microbatch), microbatch=microbatch, activations="keep", batch=(32, 12)
        ) as model:
            for each in inputs[:2]:
                model.step(each)
            traffic = model.store.traffic
            before = traffic.read["weight"], traffic.written["weight"]
            model.step(inputs[2])
            moved.add((traffic.read["weight"] - before[0], traffic.written["weight"] - before[1]))
            sizes = [4 * layout.size for layout in model.store.layouts]
            needs = model.streaming.needs
    once, head = sum(sizes), model.streaming.head
    passes = [sum(sizes[owner] for owner in each) for each in needs]
    assert moved == {(2 * sum(passes) - passes[head], once)}


@pytest.mark.parametrize("family", ["gpt2", "bert", "t5", "hand_written"])
def test_evaluating_is_the_same_for_any_microbatch_and_changes_nothing(tmp_path, family):
    fresh, found, steps_after = [], [], []
    for number, (microbatch, placement) in enumerate([(8, "disk"), (2, "disk"), (2, "device")]):
        model = sm_build(family, tmp_path / str(number), microbatch, placement)
        with model:
            fresh.append(model.evaluate(batch(family, 1)))
            model.step(batch(family, 0))
            order, state = list(model.streaming.order), torch.get_rng_state()
            found.append([model.evaluate(batch(family, 1)) for _ in range(2)])
            assert model.streaming.order == order and torch.equal(torch.get_rng_state(), state)
            assert model.streaming.training and model.model.training
            steps_after.append(model.step(batch(family, 2)))
    assert all(first == second for first, second in found)
    assert found[1] == found[2] and steps_after[1] == steps_after[2]
    tolerance = 1e-6 if family != "hand_written" else 1e-3  # it takes a mean over the microbatch
    assert fresh[1] == fresh[2] == pytest.approx(fresh[0], rel=tolerance)


def sm_build(family, folder, microbatch, placement):
    return stream(make(family, 0.1).train(), folder, microbatch=microbatch, placement=placement, batch=batch(family, 0))


def test_generate_is_transformers_own(tmp_path):
    torch.manual_seed(0)
    plain = make("gpt2", 0.1).eval()
    prompt = batch("gpt2", 1)["input_ids"][:2, :5]
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = plain.generate(prompt, **how)
    with stream(make("gpt2", 0.1).train(), tmp_path / "store") as model:
        assert torch.equal(model.generate(prompt, **how), expected)
    with (
        stream(HandWritten(0.0), tmp_path / "other", batch=batch("hand_written", 0)) as model,
        pytest.raises(UserError, match="HandWritten: has no `generate`"),
    ):
        model.generate(prompt)


def test_a_closed_model_lets_go_of_its_folder(tmp_path):
    with stream(CONFIG, tmp_path / "store") as model:
        expected = steps(model, 0, 2)
    assert model.plan.streams
    with stream(CONFIG, tmp_path / "store") as again:
        assert steps(again, 0, 2) == expected


class ReachesInto(HandWritten):
    """Ties its output by hand, from outside of the embedding."""

    def forward(self, input_ids, labels):
        x = self.embed(input_ids)
        for layer in self.layers:
            x, _ = layer(x, scale=torch.ones(()))
        return nn.functional.cross_entropy((x @ self.embed.weight.T).flatten(0, 1), labels.flatten())


def test_what_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"gpt2-huge: neither a folder .* presets: bert-tiny, .*gpt-neox-20b"):
        stream("gpt2-huge", tmp_path / "a")
    with pytest.raises(UserError, match=r"Linear: no nn\.ModuleList of equal blocks"):
        stream(nn.Linear(2, 2), tmp_path / "b")
    with pytest.raises(UserError, match=r"ReachesInto: its forward reaches into a segment .*'weight'.*layers\.0"):
        stream(ReachesInto(0.0), tmp_path / "b", batch=batch("hand_written", 0))
    with pytest.raises(UserError, match="give store=FOLDER"):
        stream(CONFIG, None)
    with pytest.raises(UserError, match="on a CPU, RAM is the device's memory"):
        stream(CONFIG, tmp_path / "c", ram="1GiB")
    with pytest.raises(UserError, match=r"host memory with device\.placement = ram, and device\.ram is 1\.00 MiB"):
        stream(CONFIG, tmp_path / "c", placement="ram", ram="1MiB")
    with pytest.raises(UserError, match="MiB"):
        stream(CONFIG, tmp_path / "c", placement="auto", memory="1MiB")
    model = stream(CONFIG, tmp_path / "d")
    with pytest.raises(UserError, match="another process keeps its state here"):
        stream(CONFIG, tmp_path / "d")
    model.close()


def test_a_loss_that_is_not_finite_updates_nothing(tmp_path):
    def loss(module, inputs):
        return module(inputs["input_ids"], inputs["labels"]) * inputs["factor"].mean()

    inputs = batch("hand_written", 0) | {"factor": torch.ones(8)}
    model = stream(HandWritten(0.0), tmp_path / "store", loss=loss, batch=inputs)
    expected = model.step(inputs)
    before = [model.store.weights(i) for i in range(5) if flushed(model)]
    with pytest.raises(UserError, match=r"update 2: loss nan.*nothing was updated"):
        model.step(inputs | {"factor": torch.full((8,), torch.nan)})
    after = [model.store.weights(i) for i in range(5)]
    assert all(torch.equal(a[name], b[name]) for a, b in zip(before, after, strict=True) for name in a)
    assert model.step(inputs) < expected


@pytest.fixture
def small_disk(tmp_path):
    """A file system in memory with 6 MiB, and a way to make it larger."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(mounted)], capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root with CAP_SYS_ADMIN")
    yield mounted, lambda: subprocess.run(["mount", "-o", "remount,size=60m", str(mounted)], check=True)
    subprocess.run(["umount", "-l", str(mounted)], check=True)


@pytest.mark.parametrize("what", ["update", "snapshot", "gradient", "activations"])
def test_a_full_disk_stops_clearly_and_the_run_goes_on_when_there_is_room(tmp_path, small_disk, what):
    disk, enlarge = small_disk
    policy = "spill" if what == "activations" else "keep"
    model = stream(CONFIG, disk / "store", activations=policy)
    expected = steps(stream(CONFIG, tmp_path / "store", activations=policy), 0, 3)
    assert steps(model, 0, 1) == expected[:1]
    model.snapshot(disk / "snapshot")
    filler = disk / "filler"
    if what in ("gradient", "activations"):  # their scratch files are there already: make them new
        for path in (disk / "store" / "scratch").iterdir():
            path.unlink()
        model.streaming.saved.close_file()
    filler.write_bytes(bytes(shutil.disk_usage(disk).free - (20 << 10 if what != "snapshot" else 0)))
    with pytest.raises(UserError, match=r"disk is full|No space left|cannot be written"):
        if what == "snapshot":
            model.snapshot(disk / "second")
        steps(model, 1, 3)
    model.close()
    filler.unlink()
    enlarge()
    again = stream(CONFIG, disk / "store", activations=policy)
    again.resume(disk / "snapshot")
    assert steps(again, 1, 3) == expected[1:]


def test_a_program_that_fails_in_a_step_ends(tmp_path):
    """What loads segments ahead does not keep the interpreter from ending."""
    program = f"""
import torch, transformers, headrace
config = transformers.GPT2Config(n_embd=32, n_layer=6, n_head=2, vocab_size=64, n_positions=16)
model = headrace.stream(config, optimizer=headrace.AdamW(lr=1e-3), store={str(tmp_path)!r}, placement="disk", batch=(2, 8))
ids = torch.zeros(2, 8, dtype=torch.int64)
model.step({{"input_ids": ids, "labels": ids}})
block = model.model.transformer.h[2].block
block.forward = lambda *_, **__: 1 / 0
model.step({{"input_ids": ids, "labels": ids}})
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1 and "ZeroDivisionError" in ended.stderr
