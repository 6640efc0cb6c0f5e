"""A GPT through the whole product: one command, killed and run again, evaluated, inspected, reported."""

import json
import signal

import pytest
from jobs import Job
from transformers import AutoModelForCausalLM, AutoTokenizer


@pytest.fixture
def gpt_job(new_job) -> Job:
    """40 steps of a GPT-2 of one layer."""
    job = new_job(evaluation__every=20)
    job.tree["model"]["preset"] = "gpt2-tiny"
    job.tree["task"] = {"kind": "causal_lm"}
    job.tree["training"]["checkpoint_every"] = 15
    job.tree["evaluation"]["prompts"] = ["私は"]
    return job


def test_a_gpt_trains_is_killed_and_goes_on_with_the_same_numbers(gpt_job, new_job):
    outcome = gpt_job("run")
    assert outcome.code == 0, outcome.err
    expected = gpt_job.result()
    assert "100.00% of" in outcome.out + outcome.err and "Next-token accuracy" in outcome.out + outcome.err

    again = new_job()
    again.tree = gpt_job.tree | {"run": {"folder": "run", "seed": 3}}
    command = again.start("run")
    assert command.wait_until(lambda: len(again.records("metrics")) >= 23)
    command.send(signal.SIGKILL)
    assert command.wait().code == -signal.SIGKILL
    assert again("run", "device.placement=disk").code == 0, "and goes on with its weights on disk"
    ours = again.result()
    assert ours["metrics"] == expected["metrics"] and ours["evaluations"] == expected["evaluations"]
    assert ours["checkpoint"] == expected["checkpoint"]

    model = gpt_job.run_folder / "model"
    assert type(AutoModelForCausalLM.from_pretrained(model)).__name__ == "GPT2LMHeadModel"
    assert AutoTokenizer.from_pretrained(model).eos_token == "[SEP]"
    evaluated = gpt_job("evaluate")
    assert evaluated.code == 0, evaluated.err
    [*_, trained, alone] = gpt_job.records("evaluations")
    assert alone == trained, "from the folder, the figures are those of training"
    assert trained["eval/perplexity"] < 150 and trained["n_examples"] == 64
    inspected = gpt_job("inspect", "run", with_params=False)
    assert inspected.code == 0 and "next-token accuracy" in inspected.out
    report = (gpt_job.run_folder / "report.html").read_text()
    assert "Next-token accuracy" in report and "every token from those before it" in report
    [sample] = json.loads((gpt_job.run_folder / "samples.json").read_text())
    assert sample["prompt"] == "私は" and sample["text"] and "<b>私は</b>" in report
    written = gpt_job("generate", "run", "--prompt", "私は", "--max-tokens", "5", "--memory", "1GiB", with_params=False)
    assert written.code == 0 and written.out.startswith("私は")
    [first, _] = json.loads((gpt_job.run_folder / "phases.json").read_text())
    assert first["tokens"] == first["tokens_used"] and not first["dropped"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model={config: {model_type: llama, hiden_size: 32}}", "model.config.hiden_size: llama has no such key"),
        ("model={config: {model_type: bert}}", "task.kind = 'causal_lm' does not fit model 'bert'"),
        ("model={config: {model_type: gemma2}}", "model.config.final_logit_softcapping = 30.0 is not supported"),
        (
            "model={config: {model_type: gpt2, n_positions: 48}}",
            "training.phases.1.sequence_length = 64 is over the model's",
        ),
        ("model.preset=bert-tiny", "task.kind = 'causal_lm' does not fit model.preset = 'bert-tiny'"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_before_anything_is_made(gpt_job, override, message):
    outcome = gpt_job("run", override)
    assert outcome.code == 2 and message in outcome.err
    assert not (gpt_job.run_folder / "tokens").exists()
