"""run.py's commands on records written here: two phases, evaluation by their lines, kill and resume, refusals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from eras import PT_BERT, SHRUNK
from make_input import flags, write_documents
from make_input import run as create
from record_files import THIRD_PARTY, VOCABULARY_SIZE, bert_arrays, gpt_arrays, write
from run_by_command import do, metrics, numbers, saved_dicts
from torch.nn import functional as F
from transformers import BertForPreTraining, GPT2LMHeadModel

import headrace
from headrace.errors import UserError
from headrace.modelzoo.run.command import main
from headrace.modelzoo.run.flags import parse
from headrace.modelzoo.run.job import jobs_of
from headrace.report.inspect import DAMAGED, inspect_folder

PARAMS = """
train_input:
    data_processor: BertTfRecordsProcessor
    data_dir: '{folder}/train-{length}'
    vocab_size: {size}
    max_sequence_length: {length}
    max_predictions_per_seq: 4
    batch_size: 6
    buckets: [10, 17]
eval_input:
    data_processor: BertTfRecordsProcessor
    data_dir: '{folder}/valid-{length}'
    vocab_size: {size}
    max_sequence_length: {length}
    max_predictions_per_seq: 4
    batch_size: 8
model:
    hidden_size: 32
    use_position_embedding: True
    use_segment_embedding: True
    position_embedding_type: 'learned'
    max_position_embeddings: 48
    share_embedding_weights: True
    num_hidden_layers: 2
    dropout_rate: 0.1
    layer_norm_epsilon: 1e-5
    num_heads: 2
    attention_dropout_rate: 0.1
    filter_size: 64
    encoder_nonlinearity: 'gelu'
    mixed_precision: False
optimizer:
    optimizer_type: 'adamw'
    weight_decay_rate: 0.01
    epsilon: 1e-6
    max_gradient_norm: 1.0
    disable_lr_steps_reset: True
    learning_rate:
        - steps: 4
          scheduler: 'Linear'
          initial_learning_rate: 0.0
          end_learning_rate: 0.01
        - scheduler: 'Linear'
          initial_learning_rate: 0.01
          end_learning_rate: 0.0
          steps: 1000
    loss_scaling_factor: 'dynamic'
runconfig:
    save_summary_steps: 1
    save_checkpoints_steps: 5
    keep_checkpoint_max: 0
    max_steps: 12
    model_dir: '{folder}/model'
    cs_ip:
    mode: 'train'
"""
GPT_PARAMS = """
train_input:
    data_processor: GptTfRecordsProcessor
    data_dir: '{folder}/gpt'
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
    dropout_rate: 0.0
    attention_dropout_rate: 0.0
    layer_norm_epsilon: 1e-5
    loss_scaling: 'num_tokens'
    mixed_precision: False
optimizer:
    optimizer_type: 'adamw'
    learning_rate: 0.01
runconfig:
    max_steps: 2
    save_checkpoints_steps: 2
    save_summary_steps: 1
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Records of two lengths, and the params files of both phases."""
    root = tmp_path_factory.mktemp("modelzoo")
    for length in (24, 40):
        for part in (1, 2):
            write(
                root / f"train-{length}" / f"examples-{part}.tfrecords",
                bert_arrays(35, length, seed=10 * length + part),
            )
        write(root / f"valid-{length}" / "examples.tfrecords", bert_arrays(29, length, seed=length))
        (root / f"msl{length}.yaml").write_text(
            PARAMS.format(folder=root, length=length, size=VOCABULARY_SIZE), "utf-8"
        )
    write(root / "gpt" / "examples.tfrecords", gpt_arrays(13, seed=4))
    (root / "gpt.yaml").write_text(GPT_PARAMS.format(folder=root, size=VOCABULARY_SIZE), "utf-8")
    return root


def refused(capsys, *words) -> str:
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        do(*words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def weights(model_dir: Path) -> dict[str, torch.Tensor]:
    return BertForPreTraining.from_pretrained(model_dir / "model").state_dict()


@pytest.fixture(scope="module")
def trained(folder) -> Path:
    """Phase 1, by the command that source 001 prints."""
    model_dir = folder / "model_msl24"
    do("--mode", "train", "--cs_ip", "192.168.0.99", "--params", folder / "msl24.yaml", "--model_dir", model_dir)
    return model_dir


def test_phase_1_writes_checkpoints_and_a_hugging_face_model(trained):
    assert [path.name for path in sorted((trained / "checkpoints").iterdir())] == [
        f"step-{step:08d}" for step in (5, 10, 12)
    ]
    assert [each["step"] for each in metrics(trained)] == list(range(1, 13))
    rates = [each["learning_rate"] for each in metrics(trained)]
    assert rates[:4] == pytest.approx([0, 0.0025, 0.005, 0.0075]) and rates[4] == pytest.approx(0.01 * (1 - 4 / 1000))
    assert metrics(trained)[-1]["loss"] < metrics(trained)[0]["loss"]


def test_phase_2_begins_with_the_weights_of_phase_1_at_step_0(folder, trained):
    model_dir = folder / "model_msl40"
    command = (
        "-m",
        "train",
        "-p",
        folder / "msl40.yaml",
        "-o",
        model_dir,
        "--checkpoint_path",
        trained,
        "--max_steps",
        3,
    )
    do(*command)
    assert [each["step"] for each in metrics(model_dir)] == [1, 2, 3]
    fresh = folder / "fresh_msl40"
    do("-m", "train", "-p", folder / "msl40.yaml", "-o", fresh, "--max_steps", 3)
    assert metrics(model_dir)[0]["batch"] == metrics(fresh)[0]["batch"]
    assert metrics(model_dir)[0]["loss"] < metrics(fresh)[0]["loss"] - 0.05
    # The first rate is 0, so that the first step leaves the weights as phase 1 made them.
    one = folder / "one_step"
    do(*(one if word == model_dir else word for word in command[:-1]), 1)
    assert all(torch.equal(value, weights(one)[name]) for name, value in weights(trained).items())


def test_the_same_command_goes_on_and_does_not_read_the_first_phase_again(folder, trained, printed):
    model_dir = folder / "twice"
    command = ("-m", "train", "-p", folder / "msl40.yaml", "-o", model_dir, "--checkpoint_path", trained)
    do(*command, "--steps", 4)
    do(*command, "--max_steps", 9)
    assert "it is not read" in printed()
    whole = folder / "once"
    do("-m", "train", "-p", folder / "msl40.yaml", "-o", whole, "--checkpoint_path", trained, "--max_steps", 9)
    assert numbers(model_dir) == numbers(whole)
    assert all(torch.equal(value, weights(whole)[name]) for name, value in weights(model_dir).items())


def plain_figures(
    model_dir: Path, arrays: dict[str, np.ndarray], batch_size: int, weight: float = 1.0, per_example: bool = False
) -> dict[str, float]:
    """The definitions, written down once more on the whole logits of transformers' own model."""
    model = BertForPreTraining.from_pretrained(model_dir / "model").eval()
    correct = count = nll = right_pairs = pairs = 0.0
    losses = []
    for start in range(0, len(arrays["input_ids"]) // batch_size * batch_size, batch_size):
        batch = {name: torch.from_numpy(values[start : start + batch_size]) for name, values in arrays.items()}
        with torch.no_grad():
            out = model(batch["input_ids"], attention_mask=batch["input_mask"], token_type_ids=batch["segment_ids"])
        rows = torch.arange(batch_size)[:, None]
        chosen, live = out.prediction_logits[rows, batch["masked_lm_positions"]], batch["masked_lm_weights"] > 0
        xent = F.cross_entropy(chosen[live], batch["masked_lm_ids"][live], reduction="sum").item()
        labels = batch["next_sentence_labels"][:, 0]
        masked = weight * xent / (batch_size if per_example else live.sum().item())
        losses.append(masked + F.cross_entropy(out.seq_relationship_logits, labels).item())
        correct += (chosen[live].argmax(-1) == batch["masked_lm_ids"][live]).sum().item()
        right_pairs += (out.seq_relationship_logits.argmax(-1) == labels).sum().item()
        nll, count, pairs = nll + xent, count + live.sum().item(), pairs + batch_size
    return {
        "eval/accuracy_cls": right_pairs / pairs,
        "eval/accuracy_masked_lm": correct / count,
        "eval/mlm_perplexity": float(np.exp(nll / count)),
        "loss": float(np.mean(losses)),
    }


def test_evaluation_prints_the_lines_and_exact_figures(folder, trained, printed):
    do("--mode", "eval", "--cs_ip", "192.168.0.99", "--params", folder / "msl24.yaml", "--model_dir", trained)
    out = printed()
    # 29 records in batches of 8: the last 5 are dropped, as the tool does.
    assert [f"Evaluation [{i}/3]" in out for i in (1, 2, 3)] == [True] * 3
    assert re.search(
        r"^Evaluation finished with 24 samples in [\d.]+ seconds, [\d.]+ samples/second", out, re.MULTILINE
    )
    assert saved_dicts(out)[12] == pytest.approx(plain_figures(trained, bert_arrays(29, 24, seed=24), 8), rel=1e-4)


def test_the_loss_of_an_evaluation_is_divided_and_weighed_as_eval_input_says(folder, trained, printed):
    """TensorFlow asks eval_input.scale_mlm_weights and multiplies by mlm_loss_weight either way."""
    command = ("-m", "eval", "-p", folder / "msl24.yaml", "-o", trained, "model.mlm_loss_weight=0.3")
    for scaled in (True, False):
        do(*command, f"eval_input.scale_mlm_weights={scaled}")
        expected = plain_figures(trained, bert_arrays(29, 24, seed=24), 8, 0.3, per_example=not scaled)
        assert saved_dicts(printed())[12] == pytest.approx(expected, rel=1e-4)


def test_predictions_of_masked_tokens_and_pairs(folder, trained, printed):
    do("-m", "predict", "-p", folder / "msl24.yaml", "-o", trained)
    path = trained / "predict" / "predictions.jsonl"
    assert f"Predictions for 29 records: {path}" in printed().replace("\n", "")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    arrays = bert_arrays(29, 24, seed=24)
    tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
    model = BertForPreTraining.from_pretrained(trained / "model").eval()
    with torch.no_grad():
        out = model(tensors["input_ids"], attention_mask=tensors["input_mask"], token_type_ids=tensors["segment_ids"])
    log_shares = out.prediction_logits.log_softmax(-1).numpy()
    random_next = out.seq_relationship_logits.softmax(-1)[:, 1].numpy()
    assert [row["record"] for row in rows] == list(range(29))
    for k, row in enumerate(rows):
        count = int(arrays["masked_lm_weights"][k].sum())
        positions, true = arrays["masked_lm_positions"][k, :count], arrays["masked_lm_ids"][k, :count]
        assert row["positions"] == positions.tolist() and row["target_ids"] == true.tolist()
        assert row["predicted_ids"] == log_shares[k, positions].argmax(-1).tolist()
        assert row["log_likelihood"] == pytest.approx(log_shares[k, positions, true].mean(), abs=1e-4)
        assert row["random_next_probability"] == pytest.approx(random_next[k], abs=1e-5)
        assert row["next_sentence_label"] == arrays["next_sentence_labels"][k, 0]


def test_the_report_tells_of_the_records(folder, trained):
    page = (trained / "report.html").read_text("utf-8")
    for text in (
        "finished, 12 steps",
        "The records",
        "train_input",
        "70",
        "masked sentence pairs",
        "Training loss",
        "<svg",
    ):
        assert text in page
    do("-m", "eval", "-p", folder / "msl24.yaml", "-o", trained)
    page = (trained / "report.html").read_text("utf-8")
    lines = inspect_folder(trained)
    assert not any(DAMAGED in line for line in lines)
    assert "  train_input: 70 records in 2 files: masked sentence pairs" in lines
    assert "eval_input" in page and "Next-sentence accuracy" in page and "finished, 12 steps" in page


def test_eval_steps_bound_the_batches_and_eval_all_takes_every_checkpoint(folder, trained, printed):
    do("--mode", "eval_all", "--params", folder / "msl24.yaml", "--model_dir", trained, "--eval_steps", 2)
    out = printed()
    assert out.count("Evaluation [2/2]") == 3 and "Evaluation finished with 16 samples" in out
    assert list(saved_dicts(out)) == [5, 10, 12]


def test_train_and_eval_evaluates_at_each_checkpoint(folder, printed):
    do("-m", "train_and_eval", "-p", folder / "msl24.yaml", "-o", folder / "both", "--max_steps", 7)
    assert list(saved_dicts(printed())) == [5, 7]


def test_a_killed_run_goes_on_with_the_same_numbers(folder):
    """kill -9 of the run with two input workers, as its users start it; the reference has none and is never stopped."""
    model_dir, reference = folder / "killed", folder / "not_killed"
    words = ["--mode", "train", "--params", str(folder / "msl24.yaml"), "--device", "cpu", "--max_steps", "60"]
    main([*words, "--model_dir", str(reference), "training.input_workers=0"])
    command = [sys.executable, "-m", "headrace.modelzoo.run", *words, "--model_dir", str(model_dir)]
    command.append("training.input_workers=2")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(headrace.__file__).parents[1])}
    started = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline_s = time.monotonic() + 90
    while not (model_dir / "metrics.jsonl").is_file() or len(metrics_or_less(model_dir)) < 8:
        assert started.poll() is None and time.monotonic() < deadline_s
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert len(metrics_or_less(model_dir)) < 60
    main([*words, "--model_dir", str(model_dir), "training.input_workers=0"])
    assert numbers(model_dir) == numbers(reference)
    assert all(torch.equal(value, weights(reference)[name]) for name, value in weights(model_dir).items())


def metrics_or_less(model_dir: Path) -> list[str]:
    """Whole lines only: the run may be writing."""
    return (model_dir / "metrics.jsonl").read_text("utf-8").split("\n")[:-1]


def test_gpt_records_train_with_the_loss_of_the_plain_model(folder):
    do("CPU", "-m", "train", "-p", folder / "gpt.yaml", "-o", folder / "gpt_model", "optimizer.learning_rate=0.0")
    arrays = gpt_arrays(13, seed=4)
    model = GPT2LMHeadModel.from_pretrained(folder / "gpt_model" / "model").eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(arrays["input_ids"])).logits
    live = torch.from_numpy(arrays["input_mask"]) > 0
    nlls = F.cross_entropy(logits[live], torch.from_numpy(arrays["labels"])[live], reduction="none")
    assert metrics(folder / "gpt_model")[0]["loss"] == pytest.approx(nlls.mean().item(), rel=0.02)  # of 5 records


def test_check_flags_print_the_plan_and_train_nothing(folder, printed):
    for flag in ("--validate_only", "--compile_only"):
        do("-m", "train", "-p", folder / "msl24.yaml", "-o", folder / "checked", flag)
        out = printed()
        assert (
            "70 records in 2 files" in out
            and "Everything fits together" in out
            and "parameters, vocabulary 1,000" in out
        )
        assert not (folder / "checked" / "checkpoints").exists()


def test_token_records_of_a_sentencepiece_model_from_creating_to_whole_word_masks(tmp_path, printed):
    """vocab_file is the .model all the way; what is masked at load is whole words."""
    sentencepiece = pytest.importorskip("sentencepiece")
    write_documents(tmp_path, 6, sentences=20)
    text = "\n".join(path.read_text() for path in tmp_path.glob("text-*.txt"))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.split("\n")), model_prefix=str(tmp_path / "sp"), vocab_size=120, minloglevel=2
    )
    model = tmp_path / "sp.model"
    create(flags(tmp_path, "--vocab_file", model, "--output_dir", tmp_path / "csv", "--max_seq_length", 32, form="csv"))
    path = tmp_path / "params.yaml"
    path.write_text(PT_BERT, "utf-8")
    data = [f"train_input.data_dir={tmp_path / 'csv'}", "train_input.batch_size=4", "train_input.mask_whole_word=True"]
    data += [f"train_input.vocab_file={model}", "train_input.max_sequence_length=32", "train_input.do_lower=False"]
    data += ["train_input.max_predictions_per_seq=6", "model.max_position_embeddings=32", *SHRUNK]
    do("-m", "train", "-p", path, "-o", tmp_path / "out", "--max_steps", 2, "model.vocab_size=124", *data)
    assert "not in the vocabulary" not in printed()
    do("-m", "predict", "-p", path, "-o", tmp_path / "out", "model.vocab_size=124", *data)
    rows = (tmp_path / "out" / "predict" / "predictions.jsonl").read_text("utf-8").splitlines()
    assert rows and all(json.loads(row)["predicted_tokens"] for row in rows)
    assert (tmp_path / "out" / "model" / "tokenizer.json").is_file()


def test_hardware_flags_are_said_once_to_be_without_effect(folder, printed):
    do("CSX", "-m", "train", "-p", folder / "msl24.yaml", "-o", folder / "flags", "--num_csx", 1, "--num_wgt_servers", 12,
       "--mount_dirs", "/a", "/b", "--multireplica", "--validate_only")  # fmt: skip
    out = printed()
    for flag in ("--num_csx", "--num_wgt_servers", "--mount_dirs", "--multireplica"):
        assert out.count(f"{flag}: no effect") == 1


def test_records_that_do_not_fit_are_refused_before_training(folder, capsys):
    target = ("-m", "train", "-p", folder / "msl24.yaml", "-o", folder / "refused")
    for words, expected in (
        (["train_input.max_sequence_length=32", "train_input.buckets=[10]"], ["max_sequence_length 24 against 32"]),
        (["train_input.max_predictions_per_seq=5"], ["max_predictions_per_seq 4 against 5"]),
        (["train_input.vocab_size=500", "eval_input.vocab_size=500"], ["the vocabulary has 500 entries", "record "]),
        ([f"train_input.data_dir={folder / 'nothing'}"], ["train_input.data_dir", "no such file or folder"]),
        (["train_input.data_processor=BertMlmOnlyTfRecordsStaticMaskProcessor"], ["model.disable_nsp: True"]),
        (["train_input.repeat=False"], ["--max_steps 11", "70 records"]),
    ):
        error = refused(capsys, *target, *words)
        assert all(each in error for each in expected), error
    assert not (folder / "refused" / "checkpoints").exists()


def test_a_damaged_record_is_named_before_training(folder, capsys):
    path = write(folder / "damaged" / "examples.tfrecords", bert_arrays(12, 24))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    error = refused(
        capsys,
        "-m",
        "train",
        "-p",
        folder / "msl24.yaml",
        "-o",
        folder / "refused",
        f"train_input.data_dir={path.parent}",
    )
    assert str(path) in error and "record" in error
    assert not (folder / "refused" / "checkpoints").exists()


def test_flags_that_are_wrong_are_named(folder, capsys, tmp_path):
    params = folder / "msl24.yaml"
    for words, expected in (
        (["-m", "fit", "-p", params], "fit"),
        (["-m", "train"], "--params"),
        (["-m", "train", "-p", params, "--devise", "cpu"], "--devise"),
        (["-m", "train", "-p", params, "--device", "tpu"], "tpu"),
        (["-m", "train", "-p", params, "--max_steps", "0"], "--max_steps"),
        (["-m", "train", "-p", params, "TPU"], "TPU"),
    ):
        with pytest.raises(UserError, match=re.escape(expected)):
            parse([str(word) for word in words])
    assert "holds no checkpoint" in refused(capsys, "-m", "eval", "-p", params, "-o", tmp_path)
    missing = refused(capsys, "-m", "train", "-p", params, "-o", tmp_path, "--checkpoint_path", tmp_path / "no")
    assert "--checkpoint_path" in missing and "is no folder" in missing


def test_changes_by_their_keys_and_by_ours(folder):
    request = parse(["-p", str(folder / "msl24.yaml"), "model.num_hidden_layers=1", "device.kind=cpu", "run.seed=9"])
    (job,) = jobs_of(request)
    assert job.mode == "train" and job.params.run.seed == 9 and job.params.device.kind == "cpu"
    assert job.params.model.config is not None and job.params.model.config["num_hidden_layers"] == 1
    assert job.params.run.folder == folder / "model"


@pytest.mark.skipif(not THIRD_PARTY.is_dir(), reason=f"{THIRD_PARTY} is not there")
def test_third_party_records_train_and_evaluate(folder, printed):
    """Two phases and an evaluation on files that the tool itself wrote, with its vocabulary."""
    changes = []
    for part in ("train_input", "eval_input"):
        changes += [f"{part}.vocab_file={THIRD_PARTY / 'vocab_uncased.txt'}", f"{part}.vocab_size=30522"]
    first = [*changes, "model.max_position_embeddings=512"]
    for length, predictions, start in ((128, 20, []), (512, 80, ["--checkpoint_path", folder / "tp128"])):
        own = [f"{p}.max_sequence_length={length}" for p in ("train_input", "eval_input")]
        own += [f"{p}.max_predictions_per_seq={predictions}" for p in ("train_input", "eval_input")]
        own += [f"{p}.data_dir={THIRD_PARTY / f'mz_msl{length}'}" for p in ("train_input", "eval_input")]
        do(
            "-m",
            "train",
            "-p",
            folder / "msl24.yaml",
            "-o",
            folder / f"tp{length}",
            "--max_steps",
            2,
            *start,
            *first,
            *own,
        )
    do("-m", "eval", "-p", folder / "msl24.yaml", "-o", folder / "tp512", "--eval_steps", 2, *first, *own)
    figures = saved_dicts(printed())[2]
    assert 1000 < figures["eval/mlm_perplexity"] < 30522  # four steps say little, but more than nothing
    assert (folder / "tp512" / "model" / "tokenizer.json").is_file()


@pytest.mark.skipif(not THIRD_PARTY.is_dir(), reason=f"{THIRD_PARTY} is not there")
def test_csv_records_are_masked_at_load_and_a_checkpoint_gives_its_whole_state(tmp_path, printed):
    """A PyTorch file: --checkpoint_path alone goes on at its step, with the flag its weights begin at step 0."""
    path = tmp_path / "params.yaml"
    path.write_text(PT_BERT, "utf-8")
    data = [f"train_input.data_dir={THIRD_PARTY / 'mz_csv_msl128'}", "train_input.batch_size=4", *SHRUNK]
    data += [f"train_input.vocab_file={THIRD_PARTY / 'vocab_uncased.txt'}", "runconfig.log_steps=1"]
    data += ["train_input.max_sequence_length=128", "train_input.max_predictions_per_seq=20"]
    runs = (("whole", 4, []), ("half", 2, []), ("rest", 4, ["--checkpoint_path", tmp_path / "half"]))
    for name, steps, begin in runs:
        do("CSX", "-m", "train", "-p", path, "-o", tmp_path / name, "--max_steps", steps, *begin, *data)
    assert numbers(tmp_path / "whole") == numbers(tmp_path / "half") + numbers(tmp_path / "rest")
    begin = ["--checkpoint_path", tmp_path / "half", "--is_pretrained_checkpoint"]
    do("CSX", "-m", "train", "-p", path, "-o", tmp_path / "weights", "--max_steps", 1, *begin, *data)
    assert [each["step"] for each in metrics(tmp_path / "weights")] == [1]
