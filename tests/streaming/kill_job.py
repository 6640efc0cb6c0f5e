"""A streamed training run that snapshots, and goes on from the newest snapshot: `python kill_job.py FOLDER`."""

import json
import shutil
import sys
from pathlib import Path

import torch
from transformers import GPT2Config

import headrace

STEPS, EVERY = 12, 2


def main(folder: Path) -> None:
    config = GPT2Config(
        vocab_size=4000, n_embd=128, n_layer=4, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    model = headrace.stream(
        config,
        optimizer=headrace.AdamW(lr=1e-3),
        store=folder / "store",
        batch=(4, 32),
        placement="disk",
        activations="spill",
        microbatch=2,
    )
    snapshots = sorted((folder / "snapshots").glob("step-*"))
    if snapshots:
        model.resume(snapshots[-1])
    print("ready", flush=True)
    with (folder / "losses.jsonl").open("a") as log:
        while model.updates < STEPS:
            generator = torch.Generator().manual_seed(model.updates)
            ids = torch.randint(4000, (4, 32), generator=generator)
            number = model.updates
            log.write(json.dumps([number, model.step({"input_ids": ids, "labels": ids})]) + "\n")
            log.flush()
            if model.updates % EVERY == 0:
                model.snapshot(folder / "snapshots" / f"step-{model.updates:03d}")
                for old in sorted((folder / "snapshots").glob("step-*"))[:-2]:
                    shutil.rmtree(old.with_name(".old"), ignore_errors=True)  # a killed run may have left half of one
                    shutil.rmtree(old.rename(old.with_name(".old")))
    if not (folder / "out").exists():
        model.save(folder / "out")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
