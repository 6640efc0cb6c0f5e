"""Really trains a named model on this machine, inside the memory given, and lays the plan beside what was measured.

    python benchmarks/single_device.py --model gpt3-xl --memory 6GiB --steps 2
    python benchmarks/single_device.py --model gpt-j-6b --optimizer adamw_8bit --memory 8GiB --steps 2
    python benchmarks/single_device.py --model gpt-neox-20b --optimizer adafactor --memory 9GiB --steps 2

Weights are new, tokens random: what is shown is that every step of full-parameter training runs, how long it takes and
what it moves. The store is deleted afterwards. Prints one JSON line last.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # as the command sets it

import torch

import headrace
from headrace.planning.device import Precision
from headrace.planning.probe import probe

OPTIMIZERS = {
    "adamw": lambda clip: headrace.AdamW(lr=1e-4, max_norm=clip),
    "adamw_8bit": lambda clip: headrace.AdamW8bit(lr=1e-4, max_norm=clip),
    "adafactor": lambda _: headrace.Adafactor(lr=1e-3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gpt3-xl")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw")
    parser.add_argument("--memory", default="6GiB")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--examples", type=int, default=1)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--clip", type=float, default=1.0, help="global norm; 0 = no clipping, and no gradients held")
    parser.add_argument("--store", type=Path, help="folder for the state; default: a temporary one")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="single-device-", dir=arguments.store))
    try:
        print(json.dumps(run(arguments, folder)))
    finally:
        shutil.rmtree(folder)


def run(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    optimizer = OPTIMIZERS[arguments.optimizer](arguments.clip or None)
    machine = probe(folder, optimizer.rule, Precision(torch.device("cpu"), None))
    print(f"machine: {machine}", flush=True)
    started_s = time.perf_counter()
    model = headrace.stream(
        arguments.model,
        optimizer=optimizer,
        memory=arguments.memory,
        store=folder,
        batch=(arguments.examples, arguments.length),
        machine=machine,
    )
    plan = model.plan
    [work] = plan.works
    print(f"{plan.num_parameters:,} parameters; made in {time.perf_counter() - started_s:.0f} s", flush=True)
    print(f"plan: {json.dumps(plan.record() | {'segments': len(plan.segments)})[:2000]}", flush=True)
    steps = []
    for number in range(arguments.steps):
        generator = torch.Generator().manual_seed(number)
        vocabulary = model.model.config.vocab_size  # pyright: ignore
        ids = torch.randint(vocabulary, (arguments.examples, arguments.length), generator=generator)
        traffic, waited_s = model.store.traffic, model.streaming.fetcher.waited_s
        read, written = sum(traffic.read.values()), sum(traffic.written.values())
        started_s = time.perf_counter()
        loss = model.step({"input_ids": ids, "labels": ids})
        steps.append(
            {
                "loss": round(loss, 5),
                "gradient_norm": round(model.gradient_norm, 5),
                "step_s": round(time.perf_counter() - started_s, 2),
                "read_bytes": sum(traffic.read.values()) - read,
                "written_bytes": sum(traffic.written.values()) - written,
                "fetch_wait_s": round(model.streaming.fetcher.waited_s - waited_s, 2),
            }
        )
        print(steps[-1], flush=True)
    model.close()
    timed = steps[1:] or steps
    step_s = statistics.median(step["step_s"] for step in timed)
    planned_read, planned_written = sum(work.read_bytes.values()), sum(work.written_bytes.values())
    return {
        "benchmark": "single_device",
        "model": arguments.model,
        "optimizer": arguments.optimizer,
        "clip": arguments.clip,
        "parameters": plan.num_parameters,
        "tokens_a_step": arguments.examples * arguments.length,
        "losses": [step["loss"] for step in steps],
        "step_s": step_s,
        "planned_step_s": round(work.step_s, 2),
        "measured_over_planned_time": round(step_s / work.step_s, 3),
        "bounds_s": {name: round(bound, 2) for name, bound in work.bounds_s.items()},
        "read_gb": round(steps[-1]["read_bytes"] / 1e9, 3),
        "written_gb": round(steps[-1]["written_bytes"] / 1e9, 3),
        "bytes_as_planned": steps[-1]["read_bytes"] == planned_read and steps[-1]["written_bytes"] == planned_written,
        "planned_read_gb": round(planned_read / 1e9, 3),
        "planned_written_gb": round(planned_written / 1e9, 3),
        "fetch_wait_s": steps[-1]["fetch_wait_s"],
        "memory": arguments.memory,
        "peak_rss_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20), 2),
        "policies": sorted(set(plan.policies)),
        "placements": {place: plan.placements.count(place) for place in set(plan.placements)},
    }


if __name__ == "__main__":
    main()
