"""What is measured adds up: segments and rest to the step; and it stands beside its plan."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config

import headrace
from headrace.planning.beside import beside, describe_phase, folded, seconds_text
from headrace.planning.measured import Measured

sys.path.insert(0, str(Path(__file__).parents[1] / "streaming"))
from models import VOCABULARY, batch  # pyright: ignore[reportAttributeAccessIssue]

CONFIG = GPT2Config(
    vocab_size=VOCABULARY, n_embd=64, n_layer=4, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0
)


def stream(folder: Path, **settings: Any) -> headrace.StreamedModel:
    usual = {"optimizer": headrace.AdamW(lr=1e-3), "placement": "disk", "batch": (8, 12)}
    return headrace.stream(CONFIG, store=folder, **usual | settings)


def steps(model: headrace.StreamedModel, measured: Measured, *numbers: int) -> None:
    for number in numbers:
        with measured.step("batch"):
            model.step(batch("gpt2", number))


@pytest.mark.parametrize("microbatch", [8, 3])
@pytest.mark.parametrize("activations", ["keep", "spill", "recompute"])
@pytest.mark.parametrize("max_norm", [1.0, None])
def test_seconds_add_up(tmp_path, microbatch, activations, max_norm):
    optimizer = headrace.AdamW(lr=1e-3, max_norm=max_norm)
    model = stream(tmp_path, microbatch=microbatch, activations=activations, optimizer=optimizer)
    measured = Measured(model.store, model.streaming)
    steps(model, measured, 0, 1, 2)
    [found] = measured.record()
    on_clock_s = found["rest_s"]
    for own, layout in zip(found["segments"], model.store.layouts, strict=True):
        assert own["wait_s"] >= 0 and own["forward_s"] > 0 and own["backward_s"] > 0
        assert (own["update_s"] > 0) == (layout.trainable_size > 0)
        on_clock_s += own["wait_s"] + own["forward_s"] + own["backward_s"]
        on_clock_s += own["update_s"] if max_norm is None else 0  # else it runs beside the computing
    assert on_clock_s == pytest.approx(found["step_s"])
    assert found["rest_s"] > 0
    model.close()


def test_resident_segments_of_a_streaming_model_are_on_the_clock(tmp_path):
    whole = sum(stream(tmp_path / "a", placement="device", microbatch=8).plan.needed_bytes.values())
    model = stream(tmp_path / "b", placement="auto", microbatch=8, memory=int(0.9 * whole))
    assert {"device", "disk"} == set(model.store.placements)
    measured = Measured(model.store, model.streaming)
    steps(model, measured, 0, 1)
    for own in measured.record()[0]["segments"]:
        assert own["forward_s"] > 0 and own["backward_s"] > 0
    model.close()


def test_steps_without_an_update_are_left_out(tmp_path):
    model = stream(tmp_path / "store", activations="recompute")
    measured = Measured(model.store, model.streaming)
    counted = []
    for number in range(5):
        if number == 3:
            model.snapshot(tmp_path / "snapshot")
        steps(model, measured, number)
        counted.append(measured.record()[0]["counted_steps"])
        if number:
            assert measured.record()[0]["written_bytes"]["state"] == model.plan.works[0].written_bytes["state"]
    assert counted == [1, 1, 2, 2, 3]
    assert measured.record()[0]["steps"] == 5
    model.close()


def test_plan_and_measurement_side_by_side(tmp_path):
    model = stream(tmp_path)
    measured = Measured(model.store, model.streaming)
    steps(model, measured, 0, 1, 2)
    record = json.loads(json.dumps({**model.plan.record(), "measured": measured.record()}))
    [phase] = beside(record)
    lines = [*phase.segments, phase.rest]
    for total, each in (
        (phase.total.read_bytes, [line.read_bytes for line in lines]),
        (phase.total.written_bytes, [line.written_bytes for line in lines]),
        (phase.total.compute_s, [line.compute_s for line in lines]),
        (phase.total.update_s, [line.update_s for line in lines]),
    ):
        assert total == pytest.approx((sum(pair.planned for pair in each), sum(pair.measured for pair in each)))
    for line in phase.segments:
        assert line.read_bytes.planned == line.read_bytes.measured
        assert line.written_bytes.planned == line.written_bytes.measured
        assert (line.written_bytes.measured > 0) == (line.placement == "disk")
    assert phase.total.compute_s.planned == pytest.approx(model.plan.works[0].bounds_s["compute"])
    assert phase.total.update_s.planned == pytest.approx(model.plan.works[0].bounds_s["update"])
    assert phase.total.compute_s.measured + phase.wait_s.measured == pytest.approx(phase.step_s.measured)
    groups = {line.name: count for count, line in folded(phase.segments)}
    assert sum(groups.values()) == len(model.segments) and max(groups.values()) >= 3
    text, (head, rows) = describe_phase(phase, assumed_rates=True)
    assert "mean of 2 of 3 steps" in text and all(len(row) == len(head) for row in rows)
    assert len(rows) == len(groups) + 2
    model.close()


def test_a_run_in_memory_has_a_line_only(tmp_path):
    model = stream(tmp_path, placement="device")
    measured = Measured(model.store, model.streaming)
    steps(model, measured, 0, 1)
    [phase] = beside({**model.plan.record(), "measured": measured.record()})
    [line] = describe_phase(phase, assumed_rates=False)
    assert seconds_text(phase.step_s.measured) in line and phase.counted_steps == 2


def test_seconds_in_words():
    assert [seconds_text(s) for s in (0, 1e-5, 0.0123, 0.1234, 0.99951, 1.234, 12.34, 1234.5)] == [
        "0 s", "0.01 ms", "12.3 ms", "123 ms", "1.00 s", "1.23 s", "12.3 s", "1,234 s",
    ]  # fmt: skip
