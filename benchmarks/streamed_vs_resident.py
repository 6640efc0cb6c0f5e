"""Streamed training beside plain PyTorch on one model: the same steps, weights equal at the end, speed and memory.

GPT-NeoX 1024x12, 16 heads, vocabulary 50,432 (254 M parameters), 8 x 256 tokens, microbatch 2, AdamW, clip 1.0:

    plain              the untouched model, fused AdamW, clip_grad_norm_
    plain-checkpoint   the same with every block under torch.utils.checkpoint
    ours-device        everything resident
    ours-disk          state on disk, activations kept
    ours-small         what the plan makes of --memory, 0.5 GiB of it for the interpreter

Each variant runs in a process of its own, --rounds times in alternation; figures are medians over timed steps. Prints
one JSON line last.
"""

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

import headrace
from headrace.models.blank import fill_blanks
from headrace.models.initial import initial_weights
from headrace.models.segments import segments_of
from headrace.store.files import block_sum

VARIANTS = ("plain", "plain-checkpoint", "ours-device", "ours-disk", "ours-small")
MICROBATCH = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=50_432)
    parser.add_argument("--examples", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of each variant and round, after one more")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--memory", type=float, default=3.0, help="GiB of peak RSS for ours-small")
    parser.add_argument("--store", type=Path, help="folder for the state on disk; default: a temporary one")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--one", choices=VARIANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(run_one(arguments.one, arguments)))
        return
    results: dict[str, list[dict[str, Any]]] = {variant: [] for variant in arguments.variants}
    for _ in range(arguments.rounds):
        for variant in arguments.variants:
            output = subprocess.run([sys.executable, *sys.argv, "--one", variant], check=True, stdout=subprocess.PIPE)
            results[variant].append(json.loads(output.stdout.splitlines()[-1]))
            print(f"{variant}: {results[variant][-1]}", flush=True)
    print(json.dumps(summary(results)))


def summary(results: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    for variant, runs in results.items():
        step_s = statistics.median(s for run in runs for s in run["step_s"])
        figures[variant] = {
            "step_s": round(step_s, 3),
            "peak_rss_gib": round(max(run["peak_rss_gib"] for run in runs), 2),
            "loss": runs[0]["losses"][-1],
            "cpu_s": runs[-1]["cpu_s"][-1],
        } | {key: runs[-1][key] for key in ("read_gb", "written_gb", "fetch_wait_s") if key in runs[-1]}
    if "plain" in results:
        for figure in figures.values():
            figure["speed_of_plain"] = round(figures["plain"]["step_s"] / figure["step_s"], 3)
    sums = {run["weights"] for runs in results.values() for run in runs}
    return {"benchmark": "streamed_vs_resident", "weights_equal": len(sums) == 1, **figures}


def run_one(variant: str, arguments: argparse.Namespace) -> dict[str, Any]:
    model = blank_model(arguments)
    batches = [new_batch(arguments, number) for number in range(arguments.steps + 1)]
    if variant.startswith("plain"):
        return run_plain(model, batches, blocks_checkpointed=variant == "plain-checkpoint")
    folder = Path(tempfile.mkdtemp(prefix="streamed-", dir=arguments.store))
    try:
        return run_ours(model, batches, variant, folder, arguments)
    finally:
        shutil.rmtree(folder)


def run_plain(model: GPTNeoXForCausalLM, batches: list[torch.Tensor], blocks_checkpointed: bool) -> dict[str, Any]:
    segments = segments_of(model)
    for i, segment in enumerate(segments):
        weights = initial_weights(model, segments, i, seed=0)
        for name, parameter in segment.parameters.items():
            parameter.data = weights[name]
    if blocks_checkpointed:
        for layer in model.gpt_neox.layers:
            layer.forward = checkpointed(layer.forward)
    named = list(model.named_parameters())
    plain = [p for name, p in named if "bias" in name or "norm" in name]
    decayed = [p for name, p in named if not ("bias" in name or "norm" in name)]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, fused=True)
    losses, step_s, cpu_s = [], [], []
    for batch in batches:
        started_s, before_cpu_s = time.perf_counter(), cpu_seconds()
        optimizer.zero_grad()
        total = 0.0
        for part in batch.split(MICROBATCH):
            loss = model(input_ids=part, labels=part).loss * (len(part) / len(batch))
            loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step_s.append(time.perf_counter() - started_s)
        cpu_s.append(cpu_seconds() - before_cpu_s)
        losses.append(total)
    return figures(losses, step_s, cpu_s, {name: p.detach() for name, p in named})


def checkpointed(forward: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return call


def run_ours(
    model: GPTNeoXForCausalLM, batches: list[torch.Tensor], variant: str, folder: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    ours = headrace.stream(
        model.config,
        optimizer=headrace.AdamW(lr=1e-4, max_norm=1.0),
        store=folder,
        batch=(arguments.examples, arguments.length),
        microbatch=MICROBATCH,
        placement={"ours-device": "device", "ours-disk": "disk", "ours-small": "auto"}[variant],
        memory=f"{arguments.memory - 0.5}GiB" if variant == "ours-small" else None,
    )
    print(ours.plan.needed_bytes, ours.plan.policies, ours.plan.placements, file=sys.stderr)
    losses, step_s, cpu_s = [], [], []
    for batch in batches:
        started_s, before_cpu_s = time.perf_counter(), cpu_seconds()
        before = traffic(ours)
        waited_s = ours.streaming.fetcher.waited_s
        losses.append(ours.step({"input_ids": batch, "labels": batch}))
        step_s.append(time.perf_counter() - started_s)
        cpu_s.append(cpu_seconds() - before_cpu_s)
    read, written = (after - b for after, b in zip(traffic(ours), before, strict=True))
    ours.streaming.fetcher.rest()
    started_s = time.perf_counter()
    ours.store.flush()
    flush_s = time.perf_counter() - started_s
    weights: dict[str, torch.Tensor] = {}
    result = figures(losses, step_s, cpu_s, weights, ours)
    result |= {
        "read_gb": round(read / 1e9, 2),
        "written_gb": round(written / 1e9, 2),
        "fetch_wait_s": round(ours.streaming.fetcher.waited_s - waited_s, 3),
        "flush_s": round(flush_s, 3),
    }
    ours.close()
    return result


def cpu_seconds() -> Any:
    """Processor time of this process so far: its own code, the system's for it (page faults, transfers)."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return np.array([usage.ru_utime, usage.ru_stime])


def traffic(ours: headrace.StreamedModel) -> tuple[int, int]:
    return sum(ours.store.traffic.read.values()), sum(ours.store.traffic.written.values())


def figures(
    losses: list[float],
    step_s: list[float],
    cpu_s: list[Any],
    weights: dict[str, torch.Tensor],
    ours: headrace.StreamedModel | None = None,
) -> dict[str, Any]:
    """The peak is taken before the weights are compared."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)
    sums = {name: block_sum(w.contiguous().view(-1).view(torch.uint8), 0) for name, w in weights.items()}
    for i in range(len(ours.segments) if ours else 0):
        assert ours is not None
        sums |= {n: block_sum(w.contiguous().view(-1).view(torch.uint8), 0) for n, w in ours.store.weights(i).items()}
    total = 0
    for name in sorted(sums):
        total = (total * 31 + sums[name]) % 2**64
    return {
        "losses": losses,
        "first_step_s": round(step_s[0], 3),
        "step_s": [round(s, 3) for s in step_s[1:]],
        "cpu_s": [[round(float(s), 2) for s in pair] for pair in cpu_s[1:]],
        "peak_rss_gib": round(peak, 3),
        "weights": f"{total:016x}",
    }


def blank_model(arguments: argparse.Namespace) -> GPTNeoXForCausalLM:
    """The model without weights: each segment's are made alone, so that streaming needs no room for all."""
    config = GPTNeoXConfig(
        hidden_size=arguments.width,
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.heads,
        intermediate_size=4 * arguments.width,
        vocab_size=arguments.vocabulary,
        use_cache=False,
    )
    with torch.device("meta"):
        model = GPTNeoXForCausalLM(config)
    fill_blanks(model, torch.device("cpu"))
    return model.train()


def new_batch(arguments: argparse.Namespace, number: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(arguments.vocabulary, (arguments.examples, arguments.length), generator=generator)


if __name__ == "__main__":
    main()
