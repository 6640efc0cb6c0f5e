"""Preparing text: MB/s and peak memory at 1x and 10x input, and the classic single-process loop on the same input.

    python benchmarks/prepare.py --text documents.jsonl.gz --megabytes 30

The input is made of the documents of --text (JSONL with a `text` field, .gz or not; default: the Japanese demo's
sentences, joined into documents), repeated in another order with a numbered title until it has the size asked for, so
that duplicates do not help any cache. The classic loop is Google BERT's create_pretraining_data as one would write it
with the same tokenizer: all documents tokenized into lists in memory, then instances with static masks, one process.
The vocabulary is trained before timing, and used by both. The last line is JSON.
"""

import argparse
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import yaml

from headrace.text.sentences import split_sentences
from headrace.text.vocabulary import Vocabulary, open_vocabulary

ROOT = Path(__file__).resolve().parents[1]
MB = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=None)
    parser.add_argument("--megabytes", type=float, default=30, help="size of the 1x input, UTF-8")
    parser.add_argument(
        "--times", type=int, default=10, help="how much larger the large input is; 1 = only the 1x input"
    )
    parser.add_argument("--workers", type=int, default=0, help="tokenizing processes; 0 = one per core")
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--no-classic", action="store_true")
    args = parser.parse_args()
    documents = list(source_documents(args.text))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        small, large = folder / "small.txt", folder / "large.txt"
        small_bytes = write_input(small, documents, args.megabytes * MB, seed=1)
        vocabulary = train_vocabulary_folder(folder, small, args)
        result = {
            "benchmark": "prepare",
            "kind": vocabulary.kind,
            "vocabulary": vocabulary.size,
            "cores": os.cpu_count(),
        }
        result["at_1x"] = measure(folder, small, small_bytes, args, "small")
        print(result["at_1x"], flush=True)
        if args.times > 1:
            large_bytes = write_input(large, documents, args.megabytes * MB * args.times, seed=2)
            result[f"at_{args.times}x"] = measure(folder, large, large_bytes, args, "large")
            print(result[f"at_{args.times}x"], flush=True)
        if not args.no_classic:
            result["classic"] = classic(small, small_bytes, vocabulary)
            result["ratio_to_classic"] = round(result["at_1x"]["mb_per_s"] / result["classic"]["mb_per_s"], 2)
    print(json.dumps(result))


def source_documents(path: Path | None) -> Iterator[str]:
    if path is None:
        sentences = ROOT / ".cache/demo/tatoeba-ja.txt"
        if not sentences.exists():
            subprocess.run([sys.executable, ROOT / "scripts/fetch_demo_text.py", "ja"], check=True)
        lines = sentences.read_text("utf-8").split("\n")
        yield from ("\n".join(lines[i : i + 40]) for i in range(0, len(lines), 40))
        return
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        yield from (json.loads(line)["text"] for line in file)


def write_input(path: Path, documents: list[str], num_bytes: float, seed: int) -> int:
    """Documents in random order, numbered, blank lines between them; returns the bytes written."""
    draw = random.Random(seed)
    order, written, number = list(range(len(documents))), 0, 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        while written < num_bytes:
            draw.shuffle(order)
            for i in order:
                number += 1
                text = f"第{number}話\n" + documents[i].replace("\n\n", "\n").strip() + "\n\n"
                file.write(text)
                written += len(text.encode())
                if written >= num_bytes:
                    break
    return written


def params_of(folder: Path, text: Path, args: argparse.Namespace, name: str, load: Path | None) -> Path:
    vocabulary = {"size": args.vocabulary, "sample_characters": 1_000_000}
    if load is not None:
        vocabulary = {"load": str(load)}
    tree = {
        "run": {"folder": str(folder / name)},
        "text": {
            "input": str(text),
            "format": "document_per_block",
            "vocabulary": vocabulary,
            "workers": args.workers,
        },
        "training": {"phases": [{"sequence_length": 128, "batch_size": 1, "steps": 1, "learning_rate": 1e-4}]},
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(tree), "utf-8")
    return path


def train_vocabulary_folder(folder: Path, text: Path, args: argparse.Namespace) -> Vocabulary:
    run_prepare(params_of(folder, text, args, "vocabulary", None))
    return open_vocabulary(folder / "vocabulary" / "tokenizer")


def measure(folder: Path, text: Path, num_bytes: int, args: argparse.Namespace, name: str) -> dict:
    params = params_of(folder, text, args, name, folder / "vocabulary" / "tokenizer")
    started_s = time.perf_counter()
    peaks = run_prepare(params)
    elapsed_s = time.perf_counter() - started_s
    return {
        "mb": round(num_bytes / MB, 1),
        "seconds": round(elapsed_s, 1),
        "mb_per_s": round(num_bytes / MB / elapsed_s, 2),
        "peak_rss_mb": sorted((round(peak / MB) for peak in peaks.values()), reverse=True),
        "minutes_for_3_gb": round(3000 / (num_bytes / MB / elapsed_s) / 60, 1),
    }


def run_prepare(params: Path) -> dict[int, int]:
    """Run `headrace prepare` and return the peak resident bytes of each of its processes."""
    process = subprocess.Popen([sys.executable, "-m", "headrace", "prepare", str(params)], stdout=subprocess.DEVNULL)
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            for pid in family(process.pid):
                peaks[pid] = max(peaks.get(pid, 0), peak_rss_bytes(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    status = process.wait()
    done.set()
    watcher.join()
    if status:
        sys.exit(f"headrace prepare failed with exit code {status}")
    return peaks


def family(pid: int) -> list[int]:
    """A process and its descendants (Linux)."""
    found = [pid]
    for parent in found:
        try:
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        except OSError:
            continue
        found += map(int, children)
    return found


def peak_rss_bytes(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    line = next((line for line in status.split("\n") if line.startswith("VmHWM")), "VmHWM: 0 kB")
    return int(line.split()[1]) * 1024


def classic(path: Path, num_bytes: int, vocabulary: Vocabulary) -> dict:
    """One process, everything in memory, masks drawn once: tokens first, instances after."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    draw = random.Random(12345)
    started_s = time.perf_counter()
    documents: list[list[list[int]]] = [[]]
    with path.open(encoding="utf-8") as file:
        for line in file:
            line = line.strip()
            if not line:
                documents.append([])
            for sentence in split_sentences(line, "ja"):
                documents[-1].append(vocabulary.encode_batch([sentence])[0])
    documents = [document for document in documents if document]
    tokenized_s = time.perf_counter() - started_s
    draw.shuffle(documents)
    instances = [
        instance for number in range(len(documents)) for instance in instances_of(documents, number, vocabulary, draw)
    ]
    draw.shuffle(instances)
    elapsed_s = time.perf_counter() - started_s
    return {
        "mb_per_s": round(num_bytes / MB / elapsed_s, 2),
        "mb_per_s_tokenizing_only": round(num_bytes / MB / tokenized_s, 2),
        "instances": len(instances),
        "peak_rss_mb": round(peak_rss_bytes(os.getpid()) / MB),
    }


def instances_of(
    documents: list[list[list[int]]], number: int, vocabulary: Vocabulary, draw: random.Random, length: int = 128
) -> list[tuple[list[int], list[int], list[int], list[int], int]]:
    room, document = length - 3, documents[number]
    instances, chunk, i = [], [], 0
    target = room if draw.random() > 0.1 else draw.randint(2, room)
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            end = draw.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:end] for token in sentence]
            if len(documents) > 1 and (len(chunk) == 1 or draw.random() < 0.5):
                other = number
                while other == number:
                    other = draw.randrange(len(documents))
                start = draw.randrange(len(documents[other]))
                b, label = [], 1
                for sentence in documents[other][start:]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - end
            else:
                b, label = [token for sentence in chunk[end:] for token in sentence], 0
            while len(a) + len(b) > room:
                longer = a if len(a) > len(b) else b
                longer.pop(0 if draw.random() < 0.5 else -1)
            if a and b:
                instances.append(masked_instance(a, b, label, vocabulary, draw))
            chunk = []
            target = room if draw.random() > 0.1 else draw.randint(2, room)
        i += 1
    return instances


def masked_instance(
    a: list[int], b: list[int], label: int, vocabulary: Vocabulary, draw: random.Random
) -> tuple[list[int], list[int], list[int], list[int], int]:
    ids = [vocabulary.cls_id, *a, vocabulary.sep_id, *b, vocabulary.sep_id]
    types = [0] * (len(a) + 2) + [1] * (len(b) + 1)
    candidates = [i for i, token in enumerate(ids) if token not in (vocabulary.cls_id, vocabulary.sep_id)]
    draw.shuffle(candidates)
    positions = sorted(candidates[: min(20, max(1, round(len(ids) * 0.15)))])
    targets = [ids[i] for i in positions]
    for i in positions:
        if draw.random() < 0.8:
            ids[i] = vocabulary.mask_id
        elif draw.random() < 0.5:
            ids[i] = draw.randrange(5, vocabulary.size)
    return ids, types, positions, targets, label


if __name__ == "__main__":
    main()
