"""An input section of a fine-tuning file as features of the project's tasks: one function for each form of its data.

SST-2, MNLI     GLUE's .tsv files or records of tensorflow_datasets             -> tokenized here
NER             tokens, labels (write_csv_ner.py); input_ids, input_mask, segment_ids, label_ids (write_tfrecords_ner.py)
SQuAD           input_ids, input_mask, segment_ids, start_position, end_position (write_csv_qa.py; its TFRecords: ..._positions),
                or the SQuAD JSON that both are made from                       -> tokenized here
BERTSUM         input_token_ids, labels, segment_ids, cls_ids (write_csv_data.py); input_ids, input_mask, segment_ids,
                cls_indices, labels, cls_weights (write_tfrecords_bertsum.py)
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import InputError, UserError
from headrace.labelled.features import Feature
from headrace.labelled.rows import read_rows
from headrace.labelled.tags import IGNORED
from headrace.modelzoo.fine_tuning import glue
from headrace.modelzoo.fine_tuning.columns import integer, integers, read_records
from headrace.modelzoo.fine_tuning.feature_set import FeatureSet, Item, notes_of
from headrace.modelzoo.params import InputFacts
from headrace.modelzoo.vocabulary import ids_of_entries
from headrace.params import Params
from headrace.tasks import labelled_task_of
from headrace.tasks.labelled import data_of
from headrace.text.vocabulary import Vocabulary
from headrace.text.vocabulary.load import load_vocabulary

FIRST_SENTENCE = (
    "the first sentence of each text counts neither in the loss nor in ROUGE, as in the tool, which takes its place 0 for "
    "padding"
)


def open_features(where: str, facts: InputFacts, params: Params) -> FeatureSet:
    """Open what an input section names. where: the section, for messages.

    Raises UserError or InputError: no such processor, folder, vocabulary or label, damage, and records that were made for
    another length."""
    opener = _OPENERS.get(facts.data_processor or "")
    if opener is None:
        raise UserError(
            f"{where}.data_processor = {facts.data_processor!r}: its data cannot be read here; for fine-tuning there are "
            f"{', '.join(_OPENERS)}"
        )
    if not facts.data_dir:
        raise UserError(f"{where}.data_dir: is required and not given")
    for folder in facts.data_dir:
        if not any(mark in folder for mark in "*?[") and not Path(folder).exists():
            raise UserError(f"{where}.data_dir = {folder!r}: no such file or folder; give {where}.data_dir=FOLDER")
    found = opener(where, facts, params)
    if not found.items:
        raise UserError(f"{where}.data_dir = {', '.join(facts.data_dir)}: holds no example")
    return found


def _length(facts: InputFacts, params: Params) -> int:
    return facts.sequence_length or params.training.phases[0].sequence_length


@contextmanager
def _vocabulary(where: str, facts: InputFacts, params: Params) -> Iterator[Vocabulary]:
    """vocab_file, opened for text."""
    with tempfile.TemporaryDirectory() as folder:
        path = _vocabulary_path(where, facts)
        text = params.text
        yield load_vocabulary(
            path, Path(folder) / "tokenizer", lowercase=facts.lowercase, strip_accents=text.strip_accents
        )


def _vocabulary_path(where: str, facts: InputFacts) -> Path:
    if facts.vocab_file is None or not Path(facts.vocab_file).exists():
        raise UserError(
            f"{where}.vocab_file = {facts.vocab_file!r}: no such file, and text needs it to become ids; give "
            f"{where}.vocab_file=PATH"
        )
    return Path(facts.vocab_file)


# --- text -------------------------------------------------------------------------------------------------------------


def _open_glue(where: str, facts: InputFacts, params: Params) -> FeatureSet:
    task, known = labelled_task_of(params), glue.PROCESSORS[facts.data_processor or ""]
    form, files, found = glue.glue_rows(where, known, facts.data_dir[0], facts.is_training)
    rows = list(found)
    examples = [task.parse(row, params, need_label=True) for row, _ in rows]
    notes: Counter[str] = Counter()
    with _vocabulary(where, facts, params) as vocabulary:
        features = task.features(examples, params, vocabulary, _length(facts, params), notes)
    pairs = len(known.columns) > 1
    items = [
        Item(feature, {"source": example.source, **task.truth(example)}, matched if pairs else None)
        for feature, example, (_, matched) in zip(features, examples, rows, strict=True)
    ]
    return FeatureSet(where, facts, form, files, items, notes_of(notes, "examples"))


def _open_squad(where: str, facts: InputFacts, params: Params, files: Sequence[Path]) -> FeatureSet:
    task = labelled_task_of(params)
    rows = read_rows([str(file) for file in files], "squad")
    examples = [task.parse(row, params, need_label=True) for row in rows]
    notes: Counter[str] = Counter()
    with _vocabulary(where, facts, params) as vocabulary:
        features = task.features(examples, params, vocabulary, _length(facts, params), notes)
    items = [
        Item(feature, {"source": examples[feature.example].source, **task.truth(examples[feature.example])})
        for feature in features
    ]
    sizes = {file: file.stat().st_size for file in files}
    return FeatureSet(where, facts, "SQuAD JSON", sizes, items, notes_of(notes, "questions"), examples)


# --- records ----------------------------------------------------------------------------------------------------------


def _open_ner(where: str, facts: InputFacts, params: Params) -> FeatureSet:
    """Every token of a record counts, those of [CLS], [SEP] and X, too, as in the tool."""
    names = data_of(params).labels
    if names is None:
        raise UserError(
            f"{where}.label_vocab_file = {facts.label_vocab_file!r}: no such file, and it says which label has which number; "
            f"give {where}.label_vocab_file=PATH of label2id.json"
        )
    known = {name: i for i, name in enumerate(names)}
    ids: dict[str, int] | None = None
    length, notes, files, items, unknown = _length(facts, params), [], {}, [], 0
    csv_columns, features = ("tokens", "labels"), ("input_ids", "input_mask", "segment_ids", "label_ids")
    for path, at, record in read_records(facts.data_dir, csv_columns, features, notes):
        files[path] = path.stat().st_size
        shown: dict[str, Any] = {"record": len(items)}
        if "tokens" in record:
            ids = ids or ids_of_entries(_vocabulary_path(where, facts), facts.lowercase)
            tokens, labels = record["tokens"].split(), record["labels"].split()
            tokens = [token.lower() for token in tokens] if facts.lowercase else tokens
            for label in labels:
                if label not in known:
                    raise InputError(f"{at}: label {label!r} is none of {where}.label_vocab_file ({', '.join(names)})")
            row = np.array([ids.get(token, ids["[UNK]"]) for token in tokens], np.int64)
            unknown += sum(token not in ids for token in tokens)
            types, targets = np.zeros(len(row), np.int64), np.array([known[label] for label in labels], np.int64)
            shown |= {"tokens": tokens, "truth": labels}
        else:
            row, types = _real(at, record, "segment_ids", length, 1)
            targets = integers(at, "label_ids", record["label_ids"])[: len(row)]
            if len(targets) and not 0 <= targets.min() <= targets.max() < len(names):
                raise InputError(f"{at}: label_ids holds {targets.max()}; there are {len(names)} labels, from 0")
            shown |= {"truth": [names[i] for i in targets]}
        _check(at, row, length, params, targets, "labels")
        items.append(Item(Feature((row,), (types,), len(items), None, np.arange(len(row)), targets), shown))
    if unknown:
        notes.append(f"{unknown:,} tokens are not in the vocabulary and are read as the unknown token")
    return FeatureSet(where, facts, "tokens with labels", files, items, notes)


def _open_qa(where: str, facts: InputFacts, params: Params) -> FeatureSet:
    if files := _squad_files(facts.data_dir, facts.is_training):
        return _open_squad(where, facts, params, files)
    length, notes, sizes, items = _length(facts, params), [], {}, []
    inputs = ("input_ids", "input_mask", "segment_ids")
    csv_columns = (*inputs, "start_position", "end_position")
    for path, at, record in read_records(facts.data_dir, csv_columns, inputs, notes):
        sizes[path] = path.stat().st_size
        row, types = _real(at, record, "segment_ids", length, 1)
        _check(at, row, length, params)
        ending = "" if "start_position" in record else "s"
        ends = [
            integer(at, name, record[name]) if name in record else None
            for name in (f"start_position{ending}", f"end_position{ending}")
        ]
        start, stop = ends
        if (start is None) != (stop is None) or not all(end is None or 0 <= end < len(row) for end in ends):
            raise InputError(f"{at}: the answer goes from {start} to {stop}; allowed is 0 to {len(row) - 1}")
        unique = record.get(f"unique_id{ending}")
        shown: dict[str, Any] = {"record": len(items)}
        shown |= {"unique_id": integer(at, "unique_id", unique)} if unique is not None else {}
        shown |= {"truth": [start, stop]} if start is not None else {}
        label = (start, stop) if start is not None and stop is not None else (IGNORED, IGNORED)
        items.append(Item(Feature((row,), (types,), len(items), label), shown))
    if facts.is_training and any(item.feature.label == (IGNORED, IGNORED) for item in items):
        raise UserError(f"{where}.data_dir: holds records without answers, which were made to predict, not to train")
    return FeatureSet(where, facts, "windows of questions and contexts", sizes, items, notes)


def _squad_files(data_dir: Sequence[str], training: bool) -> list[Path]:
    """SQuAD's own files, where a folder holds no records: of several those of the section, by their names."""
    found = []
    for each in data_dir:
        path = Path(each)
        if path.suffix == ".json":
            found.append(path)
        elif path.is_dir() and not any(any(path.glob(kind)) for kind in ("*.csv", "*.tf*record*")):
            files = sorted(path.glob("*.json"))
            named = [file for file in files if file.name.startswith("train" if training else "dev")]
            found += named or files
    return found


def _open_bertsum(where: str, facts: InputFacts, params: Params) -> FeatureSet:
    length, notes, files, items = _length(facts, params), [], {}, []
    csv_columns = ("input_token_ids", "labels", "segment_ids", "cls_ids")
    features = ("input_ids", "input_mask", "segment_ids", "cls_indices", "labels", "cls_weights")
    for path, at, record in read_records(facts.data_dir, csv_columns, features, notes):
        files[path] = path.stat().st_size
        labels = integers(at, "labels", record["labels"])
        if "cls_ids" in record:
            row = integers(at, "input_token_ids", record["input_token_ids"])[:length]
            types = integers(at, "segment_ids", record["segment_ids"])[: len(row)]
            starts = integers(at, "cls_ids", record["cls_ids"])
            counts = starts != 0  # as the reader has it
        else:
            row, types = _real(at, record, "segment_ids", length, 0)
            starts = integers(at, "cls_indices", record["cls_indices"])
            counts = np.asarray(record["cls_weights"])[: len(starts)] != 0
            real = np.arange(len(starts)) <= (np.flatnonzero(counts)[-1] if counts.any() else 0)
            starts, counts = starts[real], counts[real]
        most = min(len(starts), len(labels), facts.max_cls_tokens or len(starts))
        starts, labels, counts = starts[:most], labels[:most], counts[:most]
        inside = starts < len(row)
        starts, labels, counts = starts[inside], labels[inside], counts[inside]
        if not np.isin(labels, (0, 1)).all():
            raise InputError(f"{at}: labels holds {labels.max()}; allowed are 0 and 1")
        _check(at, row, length, params, types, "segment_ids")
        shown = {"record": len(items), "truth": np.flatnonzero(labels).tolist()}
        feature = Feature((row,), (types,), len(items), None, starts[counts], labels[counts])
        items.append(Item(feature, shown, starts=starts))
    return FeatureSet(where, facts, "texts with sentences to take", files, items, [*notes, FIRST_SENTENCE])


def _real(at: str, record: dict[str, Any], types: str, length: int, real: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids and types (L,) without padding. real: what input_mask has at tokens."""
    ids, mask, kinds = (integers(at, name, record[name]) for name in ("input_ids", "input_mask", types))
    if not len(ids) == len(mask) == len(kinds) == length:
        raise InputError(
            f"{at}: was made with max_sequence_length {len(ids)}, and the params say {length}; set max_sequence_length: "
            f"{len(ids)}, or make the records anew"
        )
    num_tokens = int((mask == real).sum())
    if (mask[:num_tokens] != real).any():
        raise InputError(f"{at}: input_mask has padding before tokens; make the records anew")
    return ids[:num_tokens], kinds[:num_tokens]


def _check(
    at: str, row: np.ndarray, length: int, params: Params, beside: np.ndarray | None = None, name: str = ""
) -> None:
    size = (params.model.config or {})["vocab_size"]
    if not len(row):
        raise InputError(f"{at}: has no token; make the records anew")
    if len(row) > length:
        raise InputError(
            f"{at}: has {len(row)} tokens, and max_sequence_length is {length}; set it to the length the records were made "
            f"with, or make them anew"
        )
    if not 0 <= row.min() <= row.max() < size:
        raise InputError(
            f"{at}: holds the id {row.max() if row.max() >= size else row.min()}; the vocabulary has {size} entries; set "
            f"vocab_file or vocab_size to the one the records were made with"
        )
    if beside is not None and len(beside) != len(row):
        raise InputError(f"{at}: {len(row)} tokens and {len(beside)} {name}; make the records anew")


_OPENERS = {
    **dict.fromkeys(glue.PROCESSORS, _open_glue),
    "BertTokenClassifierDataProcessor": _open_ner,
    "NerDataProcessor": _open_ner,
    "BertQADataProcessor": _open_qa,
    "QuestionAnsweringDataProcessor": _open_qa,
    "BertSumCSVDataProcessor": _open_bertsum,
    "BertSumTfRecordsProcessor": _open_bertsum,
}
