"""LoRA on a model that does not fit: what a step reads, writes and takes beside training all weights of the same folder.

    python benchmarks/lora.py --model gpt3-xl --memory 2GiB --steps 3
    python benchmarks/lora.py --model gpt3-xl --memory 2GiB --steps 3 --full      # the same, all weights trained

The folder under the adapter is made first, of random weights, in a process of its own (or given with --folder); everything is
deleted afterwards. Prints one JSON line last.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the command sets it

import torch

import headrace
from headrace.planning.device import Precision
from headrace.planning.probe import probe


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt3-xl")
    parser.add_argument("--folder", type=Path, help="a Hugging Face folder instead of a preset")
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--examples", type=int, default=4)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--full", action="store_true", help="train all weights, AdamW")
    parser.add_argument("--scratch", type=Path, help="where everything is made; default: the system's temporary folder")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make_folder(arguments)
        return
    scratch = Path(tempfile.mkdtemp(prefix="lora-", dir=arguments.scratch))
    try:
        folder = arguments.folder or scratch / "base"
        if not arguments.folder:  # in another process, so that its memory is not counted here
            command = [sys.executable, __file__, "--model", arguments.model, "--make", str(folder)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        print(json.dumps(run(arguments, folder, scratch / "store")))
    finally:
        shutil.rmtree(scratch)


def make_folder(arguments: argparse.Namespace) -> None:
    """A preset's random weights as a folder; plain SGD has no state that would be made along."""
    store = arguments.make.with_name("making")
    with headrace.stream(
        arguments.model, optimizer=headrace.SGD(lr=0.0), memory="3GiB", store=store, placement="disk", batch=(1, 128)
    ) as model:
        model.save(arguments.make)
    shutil.rmtree(store)


def run(arguments: argparse.Namespace, folder: Path, store: Path) -> dict[str, Any]:
    optimizer = headrace.AdamW(lr=1e-4)
    store.mkdir()
    machine = probe(store, optimizer.rule, Precision(torch.device("cpu"), None))
    started_s = time.perf_counter()
    model = headrace.stream(
        folder,
        lora=None if arguments.full else headrace.LoraParams(rank=arguments.rank),
        optimizer=optimizer,
        memory=arguments.memory,
        store=store,
        batch=(arguments.examples, arguments.length),
        machine=machine,
    )
    made_s = time.perf_counter() - started_s
    [work] = model.plan.works
    vocabulary = model.model.config.vocab_size  # pyright: ignore
    losses, seconds = [], []
    read = written = {}
    for number in range(arguments.steps):
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(vocabulary, (arguments.examples, arguments.length), generator=generator)
        before = model.store.traffic.read, model.store.traffic.written
        started_s = time.perf_counter()
        losses.append(round(model.step({"input_ids": ids, "labels": ids}), 5))
        seconds.append(round(time.perf_counter() - started_s, 2))
        print(f"step {number}: loss {losses[-1]}, {seconds[-1]} s", flush=True)
        after = model.store.traffic.read, model.store.traffic.written
        read, written = ({k: n - b.get(k, 0) for k, n in a.items()} for a, b in zip(after, before, strict=True))
    started_s = time.perf_counter()
    model.snapshot(store / "snapshot")
    snapshot_s = time.perf_counter() - started_s
    anew = sum(p.stat().st_blocks * 512 for p in (store / "snapshot").rglob("*") if p.stat().st_nlink == 1)
    model.close()
    step_s = statistics.median(seconds[1:] or seconds)
    return {
        "benchmark": "lora",
        "model": str(arguments.folder or arguments.model),
        "rank": None if arguments.full else arguments.rank,
        "parameters": model.plan.num_parameters,
        "trained": model.store.num_parameters,
        "tokens_a_step": arguments.examples * arguments.length,
        "losses": losses,
        "made_s": round(made_s, 1),
        "step_s": step_s,
        "planned_step_s": round(work.step_s, 2),
        "tokens_per_s": round(arguments.examples * arguments.length / step_s, 1),
        "read_bytes": read,
        "written_bytes": written,
        "bytes_as_planned": (read, written) == (work.read_bytes, work.written_bytes),
        "snapshot_s": round(snapshot_s, 2),
        "snapshot_bytes_anew": anew,
        "memory": arguments.memory,
        "needed_bytes": model.plan.needed_bytes,
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 2),
        "policies": sorted(set(model.plan.policies)),
        "placements": {place: model.plan.placements.count(place) for place in sorted(set(model.plan.placements))},
    }


if __name__ == "__main__":
    main()
