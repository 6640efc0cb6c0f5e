"""Text, vocabulary and runs of the command that the tests of headrace-create-tfrecords share."""

import json
import random
from pathlib import Path

import numpy as np

from headrace.modelzoo.create.flags import parse
from headrace.modelzoo.create_tfrecords import create
from headrace.modelzoo.records.example import parse_example
from headrace.modelzoo.records.tfrecord import read_tfrecords

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SYLLABLES = ["ba", "ke", "lo", "mi", "nu", "pa", "ri", "so", "tu", "we"]


def words(seed: int, count: int) -> list[str]:
    draw = random.Random(seed)
    return ["".join(draw.choices(SYLLABLES, k=draw.randint(1, 4))) for _ in range(count)]


def write_documents(folder: Path, count: int, sentences: int = 30, seed: int = 0) -> Path:
    """`count` files of one sentence a line; returns the metadata file, whose paths are relative to `folder`."""
    draw = random.Random(seed)
    lexicon = words(seed, 300)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number in range(count):
        lines = [
            " ".join(draw.choices(lexicon, k=draw.randint(2, 15))).capitalize() + draw.choice([".", "!", "?"])
            for _ in range(draw.randint(1, 2 * sentences))
        ]
        names.append(f"text-{number}.txt")
        (folder / names[-1]).write_text("\n".join(lines) + "\n", "utf-8")
    metadata = folder / "metadata.txt"
    metadata.write_text("\n".join(names) + "\n", "utf-8")
    return metadata


def write_vocabulary(path: Path, extra: tuple[str, ...] = ()) -> Path:
    entries = [*SPECIAL, *".!?,'", *SYLLABLES, *("##" + each for each in SYLLABLES), *extra]
    path.write_text("\n".join(dict.fromkeys(entries)) + "\n", "utf-8")
    return path


def flags(folder: Path, *more: object, form: str | None = None) -> list[str]:
    base = [
        *([form] if form else []),
        *("--metadata_files", folder / "metadata.txt", "--input_files_prefix", folder),
        *("--vocab_file", folder / "vocab.txt", "--do_lower_case", "--single_sentence_per_line"),
        *("--processes", 1),
    ]
    return [str(each) for each in (*base, *more)]


def run(arguments: list[str]) -> dict:
    given, settings = parse(arguments)
    return create(settings, vars(given))


def examples_of(folder: Path, pattern: str = "*.tfrecords") -> dict[str, np.ndarray]:
    """All records of a folder, files in order, stacked by feature."""
    found = [parse_example(frame.payload) for path in sorted(folder.glob(pattern)) for frame in read_tfrecords(path)]
    return {name: np.stack([np.asarray(each[name]) for each in found]) for name in found[0]}


def unmasked(examples: dict[str, np.ndarray]) -> np.ndarray:
    """input_ids with the true tokens put back."""
    ids = examples["input_ids"].copy()
    row, slot = np.nonzero(examples["masked_lm_weights"])
    ids[row, examples["masked_lm_positions"][row, slot]] = examples["masked_lm_ids"][row, slot]
    return ids


def params_of(folder: Path) -> dict:
    return json.loads((folder / "data_params.json").read_text("utf-8"))
