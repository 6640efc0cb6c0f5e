"""Reading Model Zoo records: records/s of the loader on one core, beside what training bert-tiny consumes on all of them.

    python benchmarks/modelzoo_records.py --records 50000

The records are BERT sentence pairs with static masks: random ids, three quarters of the sequences full. They are written
by our writer, opened with every checksum compared, checked, and read shuffled over the whole set. CPU-seconds are given
beside wall time, since they hold on a busy machine, too. The last line is JSON.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import BertConfig, BertForPreTraining

from headrace.models.presets import PRESETS
from headrace.modelzoo.records.example import encode_bert_example
from headrace.modelzoo.records.record_batches import RecordBatchRule, batches_from
from headrace.modelzoo.records.record_set import RecordSet, check_records, open_records
from headrace.modelzoo.records.tfrecord import read_tfrecords, write_tfrecords
from headrace.tasks import masked_lm
from headrace.text.batches import Batch
from headrace.text.examples import Cursor

VOCABULARY_SIZE = 30_522
CLS, SEP, MASK = 101, 102, 103


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=50_000)
    parser.add_argument("--sequence", type=int, default=128, help="max_sequence_length")
    parser.add_argument("--predictions", type=int, default=20, help="max_predictions_per_seq")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--train-batches", type=int, default=8, help="of bert-tiny; 0 = no training")
    args = parser.parse_args()
    result: dict[str, Any] = {
        "benchmark": "modelzoo_records",
        "records": args.records,
        "max_sequence_length": args.sequence,
        "batch": args.batch,
        "cores": os.cpu_count(),
    }
    with tempfile.TemporaryDirectory() as temporary:
        paths = [Path(temporary) / f"examples-{k}.tfrecords" for k in range(4)]
        per_file = args.records // len(paths)

        def write() -> int:
            return sum(write_tfrecords(path, made_examples(per_file, args, k)) for k, path in enumerate(paths))

        result["write"] = measured(write)
        result["bytes_per_record"] = round(sum(path.stat().st_size for path in paths) / (per_file * len(paths)))
        result["stream"] = measured(lambda: sum(1 for path in paths for _ in read_tfrecords(path)))
        result["open"] = measured(lambda: len(opened(temporary, args)))
        records = opened(temporary, args)
        result["check"] = measured(lambda: len(records) if not check_records(records) else 0)
        count = len(records) // args.batch

        def load() -> int:
            return sum(batch.num_examples for batch in batches(records, args, count))

        result["load"] = measured(load)
        if args.train_batches:
            result["train_bert_tiny"] = train(list(batches(records, args, args.train_batches + 1)), args.sequence)
            ratio = result["load"]["records_per_s"] / result["train_bert_tiny"]["records_per_s"]
            result["loader_to_training"] = round(ratio, 1)
    for name, value in result.items():
        print(name, value)
    print(json.dumps(result))


def made_examples(count: int, args: argparse.Namespace, seed: int) -> Iterator[bytes]:
    draw = np.random.default_rng(seed)
    for _ in range(count):
        length = args.sequence if draw.random() < 0.75 else int(draw.integers(16, args.sequence))
        ids = draw.integers(1000, VOCABULARY_SIZE, length)
        ids[[0, length // 2, length - 1]] = CLS, SEP, SEP
        positions = np.sort(draw.permutation(np.arange(1, length - 1))[: min(args.predictions, round(0.15 * length))])
        targets, ids[positions] = ids[positions], MASK
        padding, unused = [0] * (args.sequence - length), [0] * (args.predictions - len(positions))
        yield encode_bert_example(
            ids.tolist() + padding,
            [1] * length + padding,
            positions.tolist() + unused,
            targets.tolist() + unused,
            [1.0] * len(positions) + [0.0] * len(unused),
            [0] * (length // 2 + 1) + [1] * (length - length // 2 - 1) + padding,
            int(draw.integers(2)),
        )


def opened(folder: str, args: argparse.Namespace) -> RecordSet:
    return open_records(
        folder,
        max_sequence_length=args.sequence,
        max_predictions_per_seq=args.predictions,
        vocabulary_size=VOCABULARY_SIZE,
    )


def batches(records: RecordSet, args: argparse.Namespace, count: int) -> Iterator[Batch]:
    rule = RecordBatchRule(args.sequence, 0, microbatch_tokens=4096, hidden_size=PRESETS["bert-tiny"].hidden_size)
    stream = batches_from(
        records, rule, batch_size=args.batch, cursor=Cursor(), num_batches=count, seed=0, phase="benchmark"
    )
    return (batch for batch, _ in stream)


def measured(work: Callable[[], int]) -> dict[str, int]:
    """Run work, which returns how many records it did: records by wall time and by this process's CPU time."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    count = work()
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    return {"records_per_s": round(count / wall_s), "records_per_cpu_s": round(count / cpu_s)}


def train(made: list[Batch], sequence: int) -> dict[str, int]:
    """Steps of bert-tiny with torch's AdamW on batches that are ready, the first one to warm up."""
    size = PRESETS["bert-tiny"]
    config = BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_hidden_layers,
        num_attention_heads=size.num_attention_heads,
        intermediate_size=4 * size.hidden_size,
        max_position_embeddings=max(512, sequence),
    )
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = BertForPreTraining(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def steps(chosen: list[Batch]) -> int:
        for batch in chosen:
            for microbatch in batch.microbatches:
                masked_lm.training_loss(model, microbatch, device, batch)[0].backward()
            optimizer.step()
            optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return sum(batch.num_examples for batch in chosen)

    steps(made[:1])
    return measured(lambda: steps(made[1:]))


if __name__ == "__main__":
    main()
