"""headrace-create-tfrecords beside the classic single-process loop: sentences a second, and memory against input size.

    python benchmarks/create_tfrecords.py --text documents.jsonl.gz

The text (JSONL, or one document a line; Tatoeba sentences of the demo if none is given) is repeated in another order,
with numbered titles, to the sizes asked for, in files of about 5,000 lines. A vocabulary of characters and common
strings is made from it. The classic loop is BERT's: one process, all tokens and all examples in memory, the same
tokenizer sentence by sentence, the same writer. The last line is JSON.
"""

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / "benchmarks"), str(ROOT / "tests/modelzoo")]

from classic_loop import instances_of
from prepare import family, peak_rss_bytes, source_documents

from headrace.modelzoo.create.flags import parse
from headrace.modelzoo.create.tokenize import sentences_of
from headrace.modelzoo.create.vocabulary import make_vocabulary, sentence_cleaner
from headrace.modelzoo.records.example import encode_bert_example
from headrace.modelzoo.records.tfrecord import write_tfrecords

MB = 1_000_000
LINES_A_FILE = 5000
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, default=None)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[10, 100], help="sizes of the input, UTF-8")
    parser.add_argument("--classic_megabytes", type=float, default=10, help="0 = leave it out")
    parser.add_argument("--dupe_factor", type=int, default=1)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--processes", type=int, default=0)
    args = parser.parse_args()
    documents = list(source_documents(args.text))
    result: dict = {
        "benchmark": "create_tfrecords",
        "cores": len(os.sched_getaffinity(0)),
        "dupe_factor": args.dupe_factor,
    }
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_vocabulary(folder / "vocab.txt", documents)
        for megabytes in args.megabytes:
            inputs = folder / f"text-{megabytes:g}"
            write_input(inputs, documents, megabytes * MB)
            result[f"at_{megabytes:g}_mb"] = measure(inputs, folder, args)
            print(result[f"at_{megabytes:g}_mb"], flush=True)
        if args.classic_megabytes:
            inputs = folder / "text-classic"
            write_input(inputs, documents, args.classic_megabytes * MB)
            result["classic"] = classic(inputs, folder, args)
            ours = result[f"at_{args.megabytes[-1]:g}_mb"]["sentences_per_s"]
            result["ratio_to_classic"] = round(ours / result["classic"]["sentences_per_s"], 1)
    print(json.dumps(result))


def write_vocabulary(path: Path, documents: list[str]) -> None:
    """WordPiece of all characters and the commonest strings of two to four: enough for realistic lengths."""
    counts: collections.Counter[str] = collections.Counter()
    characters: collections.Counter[str] = collections.Counter()
    for document in documents[:300]:
        text = document[:20_000]
        characters.update(text)
        for width in (2, 3, 4):
            counts.update(text[i : i + width] for i in range(0, len(text) - width, 3))
    common = [text for text, _ in counts.most_common(12_000) if not any(c.isspace() for c in text)]
    alone = [c for c in characters if not c.isspace()]
    entries = [*SPECIAL, *alone, *(f"##{c}" for c in alone), *common, *(f"##{text}" for text in common)]
    path.write_text(
        "\n".join(dict.fromkeys(entry.lower() if entry not in SPECIAL else entry for entry in entries)) + "\n", "utf-8"
    )


def write_input(folder: Path, documents: list[str], num_bytes: float) -> None:
    """Files of documents with an empty line between them, and the metadata file that lists them."""
    folder.mkdir()
    draw, order, written, number, names = random.Random(1), list(range(len(documents))), 0.0, 0, []
    lines: list[str] = []

    def flush() -> None:
        if lines:
            names.append(f"{len(names):05d}.txt")
            (folder / names[-1]).write_text("\n".join(lines) + "\n", "utf-8")
            lines.clear()

    while written < num_bytes:
        draw.shuffle(order)
        for i in order:
            number += 1
            body = [line for line in documents[i].split("\n") if line.strip()]
            new = [f"第{number}話", *body, ""]
            lines += new
            written += sum(len(line.encode()) + 1 for line in new)
            if len(lines) >= LINES_A_FILE:
                flush()
            if written >= num_bytes:
                break
    flush()
    (folder / "metadata.txt").write_text("".join(f"{name}\n" for name in names))


def flags(inputs: Path, folder: Path, args: argparse.Namespace) -> list[str]:
    return [
        *("--metadata_files", str(inputs / "metadata.txt"), "--input_files_prefix", str(inputs)),
        *("--vocab_file", str(folder / "vocab.txt"), "--output_dir", str(inputs / "records")),
        *("--multiple_docs_in_single_file", "--do_lower_case"),
        *("--dupe_factor", str(args.dupe_factor), "--max_seq_length", str(args.max_seq_length)),
    ]


def measure(inputs: Path, folder: Path, args: argparse.Namespace) -> dict:
    command = [sys.executable, "-m", "headrace.modelzoo.create_tfrecords", *flags(inputs, folder, args)]
    started_s = time.perf_counter()
    process = subprocess.Popen([*command, "--processes", str(args.processes)], stdout=subprocess.PIPE, text=True)
    peaks: dict[int, int] = {}
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.1):
            for pid in family(process.pid):
                peaks[pid] = max(peaks.get(pid, 0), peak_rss_bytes(pid))

    watcher = threading.Thread(target=watch)
    watcher.start()
    said, _ = process.communicate()
    elapsed_s = time.perf_counter() - started_s
    done.set()
    watcher.join()
    if process.returncode:
        sys.exit(f"headrace-create-tfrecords failed: {said}")
    params = json.loads((inputs / "records/data_params.json").read_text())
    return {
        "seconds": round(elapsed_s, 1),
        "sentences": params["n_sentences"],
        "sentences_per_s": round(params["n_sentences"] / elapsed_s),
        "examples_per_s": round(params["n_examples"] / elapsed_s),
        "mb_per_s": round(sum(path.stat().st_size for path in inputs.glob("*.txt")) / MB / elapsed_s, 2),
        "peak_rss_mb": sorted((round(peak / MB) for peak in peaks.values() if peak > 20 * MB), reverse=True),
    }


def classic(inputs: Path, folder: Path, args: argparse.Namespace) -> dict:
    """In a process of its own, for its memory."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import create_tfrecords as c; c.classic_here(sys.argv[2:])"
    environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    command = [
        sys.executable,
        "-c",
        code,
        str(ROOT / "benchmarks"),
        str(folder / "classic"),
        *flags(inputs, folder, args),
    ]
    return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout)


def classic_here(arguments: list[str]) -> None:
    _, settings = parse(arguments[1:])
    vocabulary, clean = make_vocabulary(settings, Path(arguments[0])), sentence_cleaner(settings)
    assert clean is not None
    draw = random.Random(settings.seed)
    started_s = time.perf_counter()
    documents: list[list[list[int]]] = []
    for name in Path(settings.metadata_files[0]).read_text().split():
        for text in (Path(settings.input_files_prefix) / name).read_text("utf-8").split("\n\n"):
            sentences = [sentence for line in text.split("\n") for sentence in sentences_of(line, False)]
            encoded = [vocabulary.encode_batch([clean(sentence)])[0] for sentence in sentences]
            documents.append([ids for ids in encoded if ids])
    documents = [document for document in documents if document]
    tokenized_s = time.perf_counter() - started_s
    draw.shuffle(documents)
    made = [
        instance
        for _ in range(settings.dupe_factor)
        for number in range(len(documents))
        for instance in instances_of(
            documents,
            number,
            draw,
            length=settings.max_seq_length,
            special=(vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id),
            vocabulary_size=vocabulary.size,
        )
    ]
    draw.shuffle(made)
    made_s = time.perf_counter() - started_s - tokenized_s
    records = (
        encode_bert_example(
            *(
                each[name]
                for name in ("input_ids", "input_mask", "masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
            ),
            each["segment_ids"],
            each["next_sentence_labels"][0],
        )
        for each in made
    )
    write_tfrecords(Path(arguments[0]) / "all.tfrecords", records)
    elapsed_s = time.perf_counter() - started_s
    num_sentences = sum(map(len, documents))
    print(
        json.dumps(
            {
                "seconds": round(elapsed_s, 1),
                "tokenizing_s": round(tokenized_s, 1),
                "examples_s": round(made_s, 1),
                "sentences": num_sentences,
                "sentences_per_s": round(num_sentences / elapsed_s),
                "examples": len(made),
                "peak_rss_mb": round(peak_rss_bytes(os.getpid()) / MB),
            }
        )
    )


if __name__ == "__main__":
    main()
