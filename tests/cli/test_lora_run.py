"""LoRA by its YAML: a run beside the weights of another run, killed and gone on with, evaluated, opened by peft, merged."""

import signal

import pytest
import torch
from jobs import Job
from safetensors import safe_open
from transformers import AutoModelForCausalLM

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own doing


@pytest.fixture(scope="module")
def lora_job(new_job) -> Job:
    """20 + 20 steps beside a GPT-2 of one layer that 12 steps were trained."""
    base = new_job()
    base.tree["model"]["preset"] = "gpt2-tiny"
    base.tree["task"] = {"kind": "causal_lm"}
    base.tree["training"]["phases"] = [{"sequence_length": 32, "batch_size": 8, "steps": 12}]
    assert (outcome := base("run")).code == 0, outcome.err
    job = new_job(evaluation__every=20, training__lora={"rank": 4, "dropout": 0.1})
    del job.tree["text"]["vocabulary"]
    job.tree["task"] = base.tree["task"]
    job.tree["model"] = {"init_from": str(base.run_folder)}
    job.tree["training"] |= {"checkpoint_every": 15, "keep": 3}
    job.tree["training"]["learning_rate"] = 1e-2
    return job


def test_a_lora_run_is_killed_and_goes_on_from_disk_with_the_same_numbers(lora_job, new_job, tmp_path):
    outcome = lora_job("run")
    assert outcome.code == 0, outcome.err
    assert "Training 512 trainable parameters" in outcome.out + outcome.err  # c_attn: 4 x (32 + 96)
    expected = lora_job.result()

    again = new_job()
    again.tree = lora_job.tree | {"run": {"folder": "run", "seed": 3}}
    command = again.start("run")
    assert command.wait_until(lambda: len(again.records("metrics")) >= 23)
    command.send(signal.SIGKILL)
    assert command.wait().code == -signal.SIGKILL
    outcome = again("run", "device.placement=disk")
    assert outcome.code == 0, outcome.err
    ours = again.result()
    assert ours["metrics"] == expected["metrics"] and ours["evaluations"] == expected["evaluations"]
    assert ours["checkpoint"] == expected["checkpoint"]

    checkpoints = sorted((lora_job.run_folder / "checkpoints").glob("step-*"))
    frozen = [sorted(path.glob("*-frozen.safetensors")) for path in checkpoints]
    assert len(frozen) == 3 and all(path.stat().st_nlink == 3 for path in frozen[-1])
    model = lora_job.run_folder / "model"
    base = AutoModelForCausalLM.from_pretrained(lora_job.tree["model"]["init_from"] + "/model")
    ids = torch.arange(1, 13)[None]
    whole = AutoModelForCausalLM.from_pretrained(model)(ids).logits
    assert torch.equal(whole, peft.PeftModel.from_pretrained(base, model)(ids).logits)

    evaluated = lora_job("evaluate")
    assert evaluated.code == 0, evaluated.err
    [*_, trained, alone] = lora_job.records("evaluations")
    assert alone == trained, "from the folder, the figures are those of training"
    assert lora_job("inspect", "run", with_params=False).code == 0
    written = lora_job("generate", "run", "--prompt", "私は", "--max-tokens", "5", with_params=False)
    assert written.code == 0 and written.out.startswith("私は"), written.err
    merged = lora_job("merge", "run", str(tmp_path / "merged"), with_params=False)
    assert merged.code == 0, merged.err
    logits = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")(ids).logits
    assert (logits - whole).abs().max() < 1e-5 and not (tmp_path / "merged/adapter_config.json").exists()
    assert lora_job("generate", str(tmp_path / "merged"), "--prompt", "私は", with_params=False).code == 0
    outcome = lora_job("run", "training.lora=null", f"model.init_from={lora_job.run_folder}", "run.folder=twice")
    assert outcome.code == 2 and "holds an adapter, which GPT2LMHeadModel has no place for" in outcome.err
    with safe_open(model / "adapter_model.safetensors", "pt") as file:
        assert sorted(file.keys())[0] == "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "model={preset: gpt2-tiny}",
            "training.lora trains beside weights that stay as they are, and this run has none",
        ),
        ("training.lora.targets=[query]", "Name layers in training.lora.targets, such as: c_attn, c_fc, c_proj"),
        ("training.lora.train=[classifier]", "training.lora.train: GPT2LMHeadModel has no module classifier"),
        ("training.lora.rank=0", "training.lora.rank"),
        ("training.lora.lr=1", "training.lora.lr"),
    ],
)
def test_what_does_not_fit_is_refused(lora_job, override, message):
    outcome = lora_job("run", override, "run.folder=other")
    assert outcome.code == 2 and message in outcome.err, outcome.err
    assert "Traceback" not in outcome.err
