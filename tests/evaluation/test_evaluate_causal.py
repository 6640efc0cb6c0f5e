"""The figures of causal language models against sums written by hand over the untouched model, and the same figures when the
model's segments are fetched from disk."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from headrace.errors import UserError
from headrace.evaluation import evaluate as evaluate_module
from headrace.evaluation.evaluate import evaluate
from headrace.evaluation.folder_model import FolderModel, blank_model, least_bytes, open_model, place
from headrace.evaluation.room import Room, footprints, forward_bytes, place_and_room, room_beside
from headrace.models.blank import fill_blanks
from headrace.models.folder import FolderWeights, stored_tensors
from headrace.models.segments import segments_of
from headrace.optim import AdamW
from headrace.planning.device import Precision
from headrace.planning.machine import ASSUMED
from headrace.planning.plan import Wish, make_plan
from headrace.planning.sizes import Sizes, Work
from headrace.store.snapshot import write_snapshot
from headrace.tasks import causal_lm
from headrace.text.examples import every_example
from headrace.training.setup import Trainable, build_trainable

CPU = Precision(torch.device("cpu"), None)
LENGTH = 40


@pytest.fixture
def setting(prepared, tiny_params):
    """setting(isolate, **evaluation): params, a model whose guesses are far from uniform, tokens and vocabulary."""

    def build(isolate=False, **evaluation):
        made = prepared()
        params = tiny_params(
            made.run.root,
            made.params.text.input[0],
            task={"kind": "causal_lm", "examples": "windows", "isolate_documents": isolate},
            model={"preset": "gpt2-tiny", "initializer_range": 0.3, "hidden_dropout": 0.5},
            training={"phases": [{"sequence_length": 32, "batch_size": 8, "steps": 5}], "microbatch_tokens": 300},
            evaluation=evaluation,
        )
        return params, build_trainable(params, made.vocabulary, CPU), made.tokens, made.vocabulary

    return build


def figures(params, trainable, tokens, vocabulary, **more):
    found = evaluate(params, trainable.model, tokens, vocabulary, CPU, sequence_length=LENGTH, **more)
    assert found.pop("samples_per_s") > 0
    return found


def weights_of(trainable: Trainable) -> dict[str, torch.Tensor]:
    return {n: p.detach() for segment in trainable.store.segments for n, p in segment.parameters.items()}


@pytest.mark.parametrize("isolate", [False, True])
def test_figures_are_pooled_over_all_held_out_tokens(setting, isolate):
    """Without isolation over whole windows; with it, each piece of a document alone."""
    params, trainable, tokens, vocabulary = made = setting(isolate)
    model = AutoModelForCausalLM.from_config(trainable.config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights_of(trainable)[name])
    nll, correct, num_targets, num_windows = 0.0, 0, 0, 0
    shards = tokens.shards("held_out")
    rule = causal_lm.batch_rule(params, vocabulary, LENGTH, 1)
    for span, _ in every_example(shards, causal_lm.example_rule(params, LENGTH, "evaluation", 12345)):
        [m] = rule.batch(shards, [span], [0]).microbatches
        num_windows += 1
        for number in range(1, m.example_ids.max() + 1):
            mine = m.example_ids[0] == number
            with torch.no_grad():
                logits = model(torch.from_numpy(m.input_ids[0][mine])[None]).logits[0]
            targets = torch.from_numpy(m.target_ids[mine])
            nll += F.cross_entropy(logits, targets, reduction="sum").item()
            correct += int((logits.argmax(-1) == targets).sum())
            num_targets += len(targets)
    found = figures(*made)
    assert found == {
        "eval/accuracy": pytest.approx(correct / num_targets, abs=2 / num_targets),
        "eval/perplexity": pytest.approx(math.exp(nll / num_targets), rel=1e-4),
        "eval/loss": pytest.approx(nll / num_targets, rel=1e-5),
        "n_examples": num_windows,
        "n_predicted_tokens": num_targets,
        "sequence_length": LENGTH,
    }
    held_out = [shard.info for shard in shards]
    assert num_targets == sum(info.num_tokens + info.num_documents for info in held_out)
    assert 0 < found["eval/accuracy"] < 1


def test_the_same_windows_every_time_and_others_with_another_seed(setting):
    assert figures(*setting(examples=9)) == figures(*setting(examples=9))
    assert figures(*setting(examples=9))["n_examples"] == 9
    assert figures(*setting(examples=9, mask_seed=5)) != figures(*setting(examples=9))


def test_chunks_of_the_head_do_not_change_the_figures(setting, monkeypatch):
    whole = figures(*setting())
    monkeypatch.setattr(causal_lm, "CHUNK_BYTES", 7 * 4 * 203)
    assert figures(*setting()) == pytest.approx(whole, rel=1e-6)


def checkpoint(trainable: Trainable, folder) -> FolderWeights:
    """A folder of the trainable's weights as they are."""
    folder.mkdir()
    write_snapshot(trainable.store, folder, optimizer=False)
    trainable.config.save_pretrained(folder)
    return FolderWeights(folder, stored_tensors(folder))


def open_streamed(trainable: Trainable, folder) -> FolderModel:
    model = blank_model(lambda: AutoModelForCausalLM.from_config(trainable.config), CPU.device)
    segments = segments_of(model)
    placing = place(segments, least_bytes(segments), all_fetched=True)
    assert placing.placements.count("disk") == len(segments) - 1, "the head borrows its weights"
    return open_model(folder, model, placing, CPU.device, run_by_task=[causal_lm.HEAD])


@pytest.mark.parametrize("lanes", [1, 2, 1000])
def test_streamed_segments_give_the_same_figures(setting, tmp_path, lanes):
    """All weights in a folder, the head's too, whatever the number of microbatches that share a fetch."""
    params, trainable, tokens, vocabulary = setting()
    weights = checkpoint(trainable, tmp_path / "folder")
    assert weights.stored.keys() == weights_of(trainable).keys()
    opened = open_streamed(trainable, tmp_path / "folder")
    room = Room(microbatch_tokens=300, lanes=lanes)
    streamed = replace(trainable, model=opened.model, store=opened.store, streaming=opened.streaming)  # pyright: ignore
    found = figures(params, streamed, tokens, vocabulary, streaming=opened.streaming, room=room)
    assert found == figures(params, trainable, tokens, vocabulary, room=room)
    batches = list(evaluate_module._batches(params, tokens, vocabulary, LENGTH, 300))
    assert len(batches[0].microbatches) > 2
    passes = sum(-(-len(batch.microbatches) // lanes) for batch in batches)
    whole = opened.placing.fetched_bytes
    assert whole > sum(4 * p.numel() for p in weights_of(trainable).values()), "the tied weight is fetched twice"
    assert passes * whole <= opened.store.read_bytes < (passes + 1) * whole
    opened.close()


def test_room_is_what_memory_allows(setting):
    """Less memory: fewer microbatches together, then smaller ones, then fewer weights at hand; at the end it is refused."""
    params, trainable, _, _ = setting()
    footprint_of = footprints(params, trainable.config, CPU, LENGTH)
    hidden_bytes = 4 * 4 * LENGTH * trainable.config.hidden_size
    a_lane = forward_bytes(footprint_of(4), 3) - forward_bytes(footprint_of(4), 2)
    assert 2 * hidden_bytes <= a_lane <= 4 * hidden_bytes, "what a block takes and gives, and ids, masks and positions"
    segments = segments_of(AutoModelForCausalLM.from_config(trainable.config))
    all_bytes = sum(4 * p.numel() for segment in segments for p in segment.parameters.values())
    least = least_bytes(segments) + forward_bytes(footprint_of(1), 1)
    seen = []
    for memory_bytes in range(least, 3 * all_bytes + 200 * least, least):
        placing, room = place_and_room(segments, memory_bytes, 4096, footprint_of, LENGTH)
        taken = forward_bytes(footprint_of(max(1, room.microbatch_tokens // LENGTH)), room.lanes)
        here = sum(
            4 * p.numel()
            for s, where in zip(segments, placing.placements, strict=True)
            for p in s.parameters.values()
            if where == "device"
        )
        assert taken + here + placing.pool_bytes <= memory_bytes
        seen.append((placing.fetched_bytes / room.lanes, room.microbatch_tokens))
    assert seen[-1] == (0, 4096)
    assert [tokens for _, tokens in seen] == sorted(tokens for _, tokens in seen)
    with pytest.raises(
        UserError, match=rf"device\.memory = {least - 1:,} bytes is too little.*{LENGTH} tokens take {least:,}"
    ):
        place_and_room(segments, least - 1, 4096, footprint_of, LENGTH)


def test_evaluation_beside_training_takes_the_memory_of_its_activations(setting, tmp_path):
    params, trainable, _, _ = setting()
    footprint_of = footprints(params, trainable.config, CPU, LENGTH)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(trainable.config)
    fill_blanks(model, CPU.device)
    segments = segments_of(model)
    sizes = Sizes(segments, AdamW(), lambda examples, _: footprint_of(examples))
    for examples in (8, 2):
        plan = make_plan(
            sizes,
            [Work("work", examples, LENGTH)],
            memory_bytes=None,
            disk_free_bytes=None,
            machine=ASSUMED,
            wish=Wish(placement="disk", microbatch_tokens=2 * LENGTH),
        )
        room = room_beside(plan, footprint_of, LENGTH)
        free_bytes = plan.needed_bytes["activations"] + plan.needed_bytes["temporaries"]
        assert room.microbatch_tokens == 2 * LENGTH and room.lanes >= examples // 2
        assert forward_bytes(footprint_of(2), room.lanes) <= free_bytes < forward_bytes(footprint_of(2), 2 * room.lanes)
