"""Small data sets in the very forms that the tool's fine-tuning processors read, and params files for them.

Forms: R_1.6.1 fine_tuning/*/input and data_processing, Release_2.10.0 data_preparation/nlp/write_csv_ner.py.
"""

import csv
import json
from pathlib import Path

import numpy as np

from headrace.modelzoo.records.example import encode_example
from headrace.modelzoo.records.tfrecord import write_tfrecords

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GOOD, BAD = ["good", "fine", "great", "lovely"], ["bad", "poor", "awful", "dull"]
OTHERS = [
    "a",
    "film",
    "plot",
    "the",
    "was",
    "is",
    "and",
    "not",
    "who",
    "wrote",
    "it",
    "?",
    ".",
    "##s",
    "aspirin",
    "treats",
    "pain",
]
WORDS = [*SPECIAL, *GOOD, *BAD, *OTHERS]
ID = {word: i for i, word in enumerate(WORDS)}
PAD, CLS, SEP = 0, 2, 3
NER_LABELS = ["[PAD]", "B", "I", "O", "X", "[CLS]", "[SEP]"]
LENGTH = 16

TF_PRETRAINING = """
train_input: {data_processor: BertTfRecordsProcessor, data_dir: x, vocab_file: x, batch_size: 4, max_sequence_length: 16}
model:
    hidden_size: 32
    use_position_embedding: True
    use_segment_embedding: True
    max_position_embeddings: 32
    num_hidden_layers: 2
    dropout_rate: 0.0
    layer_norm_epsilon: 1e-5
    num_heads: 2
    filter_size: 64
    encoder_nonlinearity: gelu
optimizer: {optimizer_type: adamw, learning_rate: 1e-4}
runconfig: {max_steps: 1}
"""

_PT_MODEL = f"""
    vocab_size: {len(WORDS)}
    hidden_size: 32
    num_hidden_layers: 2
    num_heads: 2
    filter_size: 64
    encoder_nonlinearity: gelu
    dropout_rate: 0.0
    attention_dropout_rate: 0.0
    max_position_embeddings: 32
    compute_eval_metrics: True"""


def params_file(
    folder: Path,
    processor: str,
    train: str,
    evaluation: str | None,
    model: str,
    *,
    tf: bool,
    more: str = "",
    steps: int = 4,
) -> Path:
    """P.yaml as the tool lays it out: configs beside the folder of the task."""
    (folder / "configs").mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", "utf-8")
    (folder / "configs" / "pretraining.yaml").write_text(TF_PRETRAINING, "utf-8")
    key = "data_file" if train.endswith((".tf_record", ".json")) else "data_dir"

    def section(name: str, data: str, shuffle: bool) -> str:
        return f"""
{name}:
    data_processor: {processor}
    {key}: {folder}/{data}
    vocab_file: {folder}/vocab.txt
    max_sequence_length: {LENGTH}
    batch_size: 8
    shuffle: {shuffle}
{more}"""

    written = section("train_input", train, True)
    if evaluation is not None:
        written += section("predict_input" if key == "data_file" else "eval_input", evaluation, False)
    base = "\n    pretrain_params_path: configs/pretraining.yaml" if tf else _PT_MODEL
    written += f"\nmodel:{base}\n    mixed_precision: False\n{model}"
    every, log = ("save_checkpoints_steps", "save_summary_steps") if tf else ("checkpoint_steps", "log_steps")
    written += f"""
optimizer: {{optimizer_type: adamw, learning_rate: 0.003, max_gradient_norm: 1.0}}
runconfig: {{max_steps: {steps}, {every}: {steps}, {log}: 1}}
"""
    path = folder / "configs" / f"{processor}.yaml"
    path.write_text(written, "utf-8")
    return path


def sentences(count: int, seed: int) -> list[tuple[str, int]]:
    """Texts with a label that one of their words tells."""
    draw = np.random.default_rng(seed)
    found = []
    for k in range(count):
        words = draw.choice(["a", "film", "plot", "the", "was", "is", "and"], int(draw.integers(2, 7))).tolist()
        words.insert(int(draw.integers(0, len(words))), str(draw.choice(GOOD if k % 2 else BAD)))
        found.append((" ".join(words), k % 2))
    return found


def write_sst2(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, count in (("train", 40), ("dev", 20)):
        lines = [f"{text}\t{label}" for text, label in sentences(count, count)]
        (folder / f"{name}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n", "utf-8")


def write_sst2_tfds(folder: Path) -> None:
    place = folder / "glue" / "sst2" / "2.0.0"
    place.mkdir(parents=True)
    for name, count in (("train", 40), ("validation", 20)):
        made = [
            encode_example({"idx": [i], "label": [label], "sentence": [text.encode()]})
            for i, (text, label) in enumerate(sentences(count, count))
        ]
        write_tfrecords(place / f"glue-{name}.tfrecord-00000-of-00001", made)


def write_mnli(folder: Path) -> None:
    """The columns of GLUE's MNLI files; dev has five labels before gold_label."""
    folder.mkdir(parents=True)
    parses = "sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
    head = f"index promptID pairID genre {parses} sentence1 sentence2"
    names = ["entailment", "neutral", "contradiction"]
    for name, votes, count in (("train", 1, 30), ("dev_matched", 5, 10), ("dev_mismatched", 5, 6)):
        columns = [*head.split(), *(f"label{i + 1}" for i in range(votes)), "gold_label"]
        lines = ["\t".join(columns)]
        for k, (text, _) in enumerate(sentences(count, count)):
            gold = names[k % 3]
            lines.append(
                "\t".join([str(k), "p", "q", "fiction", "(", ")", "(", ")", text, 'the "plot', *[gold] * votes, gold])
            )
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", "utf-8")


def ner_rows(count: int) -> list[tuple[list[str], list[str]]]:
    """Tokens and labels, with [CLS] and [SEP], as write_csv_ner.py has them."""
    draw = np.random.default_rng(count)
    rows = []
    for _ in range(count):
        tokens, labels = ["[CLS]"], ["[CLS]"]
        for _ in range(int(draw.integers(2, 6))):
            if draw.random() < 0.4:
                tokens, labels = [*tokens, "aspirin", "##s"], [*labels, "B", "X"]
            else:
                tokens, labels = [*tokens, str(draw.choice(["treats", "pain", "the"]))], [*labels, "O"]
        rows.append(([*tokens, "[SEP]"], [*labels, "[SEP]"]))
    return rows


def write_label_map(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({label: i for i, label in enumerate(NER_LABELS)}), "utf-8")


def write_csv_files(folder: Path, columns: list[str], rows: list[list], files: int = 2) -> None:
    """CSV files and their meta.dat."""
    folder.mkdir(parents=True, exist_ok=True)
    meta = []
    for f in range(files):
        path = folder / f"part-{f + 1}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([columns, *rows[f::files]])
        meta.append(f"{path.name} {len(rows[f::files])}\n")
    (folder / "meta.dat").write_text("".join(meta), "utf-8")


def write_ner_csv(folder: Path, count: int) -> None:
    write_csv_files(folder, ["tokens", "labels"], [[" ".join(t), " ".join(ls)] for t, ls in ner_rows(count)])
    write_label_map(folder / "label2id.json")


def padded(values: list[int], length: int = LENGTH) -> list[int]:
    return values + [0] * (length - len(values))


def write_ner_tfrecords(folder: Path, count: int) -> None:
    folder.mkdir(parents=True)
    made = []
    for tokens, labels in ner_rows(count):
        made.append(
            encode_example(
                {
                    "input_ids": padded([ID[t] for t in tokens]),
                    "input_mask": padded([1] * len(tokens)),
                    "segment_ids": [0] * LENGTH,
                    "label_ids": padded([NER_LABELS.index(label) for label in labels]),
                }
            )
        )
    write_tfrecords(folder / "ner_0.tfrecord", made)
    write_label_map(folder / "label2id.json")


def qa_windows(count: int) -> list[tuple[list[int], list[int], int]]:
    """Ids, segment ids, and where the answer, "aspirin ##s", begins."""
    draw = np.random.default_rng(count)
    rows = []
    for _ in range(count):
        context = draw.choice(["the", "film", "was", "pain"], int(draw.integers(2, 6))).tolist()
        at = int(draw.integers(0, len(context)))
        context[at:at] = ["aspirin", "##s"]
        question = ["who", "wrote", "?"]
        ids = [CLS, *(ID[w] for w in question), SEP, *(ID[w] for w in context), SEP]
        rows.append((ids, [0] * 5 + [1] * (len(context) + 1), 5 + at))
    return rows


QA_COLUMNS = [
    *("unique_id", "example_index", "doc_span_index", "tokens", "token_to_orig_map", "token_is_max_context"),
    *("input_ids", "input_mask", "segment_ids", "start_position", "end_position", "is_impossible"),
]


def write_qa_csv(folder: Path, count: int) -> None:
    rows = []
    for k, (ids, types, start) in enumerate(qa_windows(count)):
        tokens = [WORDS[i] for i in ids]
        mask = padded([1] * len(ids))
        rows.append(
            [10**9 + k, k, 0, tokens, {5: 0}, {5: True}, padded(ids), mask, padded(types), start, start + 1, False]
        )
    write_csv_files(folder, QA_COLUMNS, rows)


def write_qa_tfrecords(path: Path, count: int, *, answers: bool = True) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = []
    for k, (ids, types, start) in enumerate(qa_windows(count)):
        features = {
            "unique_ids": [10**9 + k],
            "input_ids": padded(ids),
            "input_mask": padded([1] * len(ids)),
            "segment_ids": padded(types),
        }
        made.append(
            encode_example(features | ({"start_positions": [start], "end_positions": [start + 1]} if answers else {}))
        )
    write_tfrecords(path, made)


def write_squad(path: Path, count: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    paragraphs = []
    for k, (ids, _, _) in enumerate(qa_windows(count)):
        context = " ".join(WORDS[i] for i in ids[5:-1]).replace(" ##", "")
        answer = {"text": "aspirins", "answer_start": context.index("aspirins")}
        paragraphs.append({"context": context, "qas": [{"id": str(k), "question": "who wrote ?", "answers": [answer]}]})
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}), "utf-8")


def summaries(count: int) -> list[tuple[list[int], list[int], list[int], list[int]]]:
    """Ids, labels, segment ids and places of [CLS] of texts of three sentences: what holds "great" sums it up."""
    draw = np.random.default_rng(count)
    rows = []
    for _ in range(count):
        taken = int(draw.integers(0, 3))
        ids: list[int] = []
        types: list[int] = []
        starts: list[int] = []
        for s in range(3):
            words = ["great" if s == taken else "dull", *draw.choice(["film", "plot", "the"], 1 + s % 2).tolist()]
            starts.append(len(ids))
            ids += [CLS, *(ID[w] for w in words), SEP]
            types += [s % 2] * (len(words) + 2)
        rows.append((ids, [int(s == taken) for s in range(3)], types, starts))
    return rows


def write_bertsum_csv(folder: Path, count: int) -> None:
    write_csv_files(
        folder, ["input_token_ids", "labels", "segment_ids", "cls_ids"], [list(row) for row in summaries(count)]
    )


def write_bertsum_tfrecords(folder: Path, count: int, most: int = 5) -> None:
    """input_mask is 1 at padding in these records alone, and weight 0 at place 0."""
    folder.mkdir(parents=True)
    for k, (ids, labels, types, starts) in enumerate(summaries(count)):
        places = padded(starts, most)
        record = {
            "input_ids": padded(ids),
            "labels": padded(labels, most),
            "input_mask": [int(i == PAD) for i in padded(ids)],
            "segment_ids": padded(types),
            "cls_indices": places,
            "cls_weights": np.array([float(p != 0) for p in places], np.float32),
        }
        write_tfrecords(folder / f"@{k}train-0bert.tfrecord", [encode_example(record)])
