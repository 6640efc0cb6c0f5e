"""The stages of a run in order, each doing only what is not done yet: prepare -> train -> evaluate -> report."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, BertForPreTraining

from headrace.cli.labelled_stage import evaluate_labelled_stage, run_labelled, train_labelled
from headrace.cli.prepare_stage import open_run
from headrace.errors import UserError
from headrace.evaluation.evaluate import describe, evaluate
from headrace.evaluation.fill import Filled, fill_blanks, fill_held_out
from headrace.evaluation.folder_model import FolderModel, blank_model, least_bytes, open_model, place
from headrace.evaluation.generate import Continued, open_writer
from headrace.evaluation.open_checkpoint import open_to_evaluate
from headrace.models.adapters import adapter_config
from headrace.models.segments import segments_of
from headrace.params import Params
from headrace.planning.device import choose_precision
from headrace.progress import say
from headrace.report.page import write_report
from headrace.run_folder import RunFolder
from headrace.tasks import task_of
from headrace.text.prepare import prepare
from headrace.text.tokens import TokenFolder, open_tokens, write_atomically
from headrace.text.vocabulary import Vocabulary, open_vocabulary
from headrace.training.checkpoint import list_checkpoints, read_manifest, recover
from headrace.training.loop import train, training_done
from headrace.training.records import read_records, record_evaluation
from headrace.training.setup import check_model
from headrace.training.text_source import TextSource

HELD_OUT_SAMPLES = 8
CONTINUATION_TOKENS = 60


def train_stage(params: Params) -> None:
    """Train from where the run stands; tokens must be there."""
    if params.data is not None:
        train_labelled(params)
        return
    check_model(params)
    run = open_run(params)
    vocabulary, tokens = _prepared(run)
    recover(run)
    if training_done(params, run):
        say(f"Training: done, {params.total_steps} steps")
        return
    tokens.verify()
    train(params, run, TextSource(params, tokens, vocabulary))
    write_report(params, run, tokens.report)


def evaluate_stage(params: Params, all_checkpoints: bool = False) -> list[dict[str, Any]]:
    """Evaluate the newest checkpoint, or all that are there, from their folders alone; add the figures to the records."""
    if params.data is not None:
        return evaluate_labelled_stage(params)
    run = open_run(params)
    vocabulary, tokens = _prepared(run)
    tokens.verify()
    checkpoints = list_checkpoints(run)
    if not checkpoints:
        raise UserError(f"{run.root}: holds no checkpoint to evaluate; run `headrace train` first")
    precision = choose_precision(params)
    length = params.evaluation.sequence_length or params.training.phases[-1].sequence_length
    records = []
    for checkpoint in checkpoints if all_checkpoints else checkpoints[-1:]:
        state = read_manifest(checkpoint)["state"]
        opened, room = open_to_evaluate(params, run, checkpoint, precision, length)
        try:
            figures = evaluate(
                params,
                opened.model,
                tokens,
                vocabulary,
                precision,
                sequence_length=length,
                streaming=opened.streaming,
                room=room,
            )
        finally:
            opened.close()
        if figures:
            records.append({"step": state["step"], "phase": state["phase"], **figures})
            record_evaluation(run, records[-1])
            say(f"{checkpoint.name}: " + describe(figures))
    write_report(params, run, tokens.report)
    return records


def run_stages(params: Params) -> None:
    """Everything that is not done yet, then the summary and the report."""
    if params.data is not None:
        run_labelled(params)
        return
    check_model(params)
    run = open_run(params)
    vocabulary, tokens = prepare(params, run)
    recover(run)
    if training_done(params, run):
        say(f"Training: done, {params.total_steps} steps")
    else:
        tokens.verify()
        train(params, run, TextSource(params, tokens, vocabulary))
    samples = sample_predictions(params, run, tokens, vocabulary)
    write_report(params, run, tokens.report)
    for line in summary(params, run, tokens, samples):
        say(line)


def sample_predictions(
    params: Params, run: RunFolder, tokens: TokenFolder, vocabulary: Vocabulary
) -> Sequence[Filled | Continued]:
    """The model's guesses for the user's sentences and some held-out ones; also written to samples.json."""
    if params.task.kind == "causal_lm":
        return _continuations(params, run)
    opened = _open_bert(params, run.model.resolve())
    with opened.running() as model:
        assert isinstance(model, BertForPreTraining)
        samples = fill_blanks(model, vocabulary, params.evaluation.fill)
        samples += fill_held_out(model, vocabulary, tokens, HELD_OUT_SAMPLES, params.evaluation.mask_seed)
    opened.close()
    data = json.dumps([sample.record() for sample in samples], ensure_ascii=False, indent=1)
    write_atomically(run.samples, data.encode())
    return samples


def _open_bert(params: Params, folder: Path) -> FolderModel:
    """A masked language model on the CPU, with half of the memory for weights."""
    config, cpu = AutoConfig.from_pretrained(folder), torch.device("cpu")
    model = blank_model(lambda: task_of(params).new_model(config), cpu, adapter_config(folder))
    segments = segments_of(model)
    memory_bytes = params.device.memory and max(params.device.memory // 2, least_bytes(segments))
    return open_model(folder, model, place(segments, memory_bytes), cpu, memory_bytes=params.device.memory)


def _continuations(params: Params, run: RunFolder) -> list[Continued]:
    """How the model goes on with the user's beginnings; also written to samples.json."""
    if not params.evaluation.prompts:
        return []
    writer = open_writer(run.model.resolve(), params.device.memory, CONTINUATION_TOKENS)
    samples = [
        Continued(prompt, "".join(writer.write(prompt, CONTINUATION_TOKENS, 0.7, 0.9, params.run.seed)))
        for prompt in params.evaluation.prompts
    ]
    writer.close()
    data = json.dumps([asdict(sample) for sample in samples], ensure_ascii=False, indent=1)
    write_atomically(run.samples, data.encode())
    return samples


def summary(params: Params, run: RunFolder, tokens: TokenFolder, samples: Sequence[Filled | Continued]) -> list[str]:
    """What a person wants to know of a finished run, most important first."""
    lines = [""]
    evaluations = read_records(run.evaluations)
    if evaluations:
        last = evaluations[-1]
        if params.task.kind == "masked_lm":
            lines.append(
                f"Masked-LM accuracy {last['eval/accuracy_masked_lm']:.3f}, perplexity {last['eval/mlm_perplexity']:.1f} "
                f"(n = {last['n_predicted_tokens']:,} hidden tokens in {last['n_examples']:,} held-out examples)"
            )
        else:
            lines.append(
                f"Next-token accuracy {last['eval/accuracy']:.3f}, perplexity {last['eval/perplexity']:.1f} "
                f"(n = {last['n_predicted_tokens']:,} tokens in {last['n_examples']:,} held-out windows)"
            )
        if last.get("eval/accuracy_cls") is not None:
            lines.append(
                f"Next-sentence accuracy {last['eval/accuracy_cls']:.3f} "
                f"(n = {last['n_pairs']:,} pairs; always giving the commoner answer would reach "
                f"{max(last['is_next_share'], 1 - last['is_next_share']):.3f})"
            )
    speeds = sorted(record["tokens_per_s"] for record in read_records(run.metrics) if record.get("tokens_per_s"))
    report = tokens.report
    lines.append(
        f"Unknown tokens {report['unknown_token_rate']:.3%}, {report['characters_per_token']:.2f} characters a token"
        + (f", {speeds[len(speeds) // 2]:,.0f} tokens/s in training (median)" if speeds else "")
    )
    if samples:
        filled = isinstance(samples[0], Filled)
        lines.append("What the model puts into a blank:" if filled else "How the model goes on:")
        for sample in samples[:6]:
            if isinstance(sample, Continued):
                lines.append(f"  {sample.prompt} -> {' '.join(sample.text.split())}")
                continue
            guesses = "  ".join(f"{text} {share:.0%}" for text, share in sample.guesses[:3])
            truth = f"   (text: {sample.truth})" if sample.truth else ""
            lines.append(f"  {sample.text.replace('[MASK]', '[　]')}  ->  {guesses}{truth}")
    lines += [
        f"Model       {run.model}  (a Hugging Face folder)",
        f"TensorBoard tensorboard --logdir {run.tensorboard}",
        f"Report      {run.report}",
    ]
    return lines


def _prepared(run: RunFolder) -> tuple[Vocabulary, TokenFolder]:
    tokens = open_tokens(run.tokens)
    return open_vocabulary(run.tokenizer), tokens
