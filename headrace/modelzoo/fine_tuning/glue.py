"""GLUE's SST-2 and MNLI as the tool finds them: .tsv files with a line of names, or the TFRecords of tensorflow_datasets.

DATA_DIR/train.tsv, dev.tsv                       also under DATA_DIR/SST-2; MNLI: dev_matched.tsv and dev_mismatched.tsv
DATA_DIR/glue/sst2/1.0.0/glue-train.tfrecord-*    sentence, label; MNLI: premise, hypothesis, label
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import InputError, UserError
from headrace.labelled.row import Row
from headrace.labelled.rows import read_rows
from headrace.modelzoo.records.example import Feature, ParseError, parse_example
from headrace.modelzoo.records.tfrecord import damaged, read_tfrecords


@dataclass(frozen=True)
class GlueSet:
    folder: str
    """What GLUE's own archive calls it."""
    dataset: str
    """What tensorflow_datasets calls it."""
    columns: tuple[str, ...]
    """Texts, of the .tsv files."""
    label: str
    features: tuple[str, ...]
    """Texts, of the TFRecords."""
    labels: tuple[str, ...]
    """In the order of the model's outputs."""
    validation: tuple[str, ...]
    """Names of the .tsv files that are evaluated on."""
    validation_splits: tuple[str, ...]


SST2 = GlueSet("SST-2", "sst2", ("sentence",), "label", ("sentence",), ("0", "1"), ("dev",), ("validation",))
MNLI = GlueSet(
    "MNLI",
    "mnli",
    ("sentence1", "sentence2"),
    "gold_label",
    ("premise", "hypothesis"),
    ("entailment", "neutral", "contradiction"),
    ("dev_matched", "dev_mismatched"),
    ("validation_matched", "validation_mismatched"),
)
PROCESSORS = {
    "SST2DataProcessor": SST2,
    "Sst2DataProcessor": SST2,
    "MNLIDataProcessor": MNLI,
    "MnliDataProcessor": MNLI,
}


def tsv_files(glue: GlueSet, data_dir: str, training: bool) -> list[Path]:
    """The files that are there, or else where they would be looked for."""
    names = ("train",) if training else glue.validation
    places = [[folder / f"{name}.tsv" for name in names] for folder in (Path(data_dir), Path(data_dir) / glue.folder)]
    return next((files for files in places if all(file.is_file() for file in files)), places[0])


def record_files(glue: GlueSet, data_dir: str, training: bool) -> list[tuple[str, list[Path]]]:
    """Of each split the files of tensorflow_datasets, of the newest version that is there; [] where any is missing."""
    splits = ("train",) if training else glue.validation_splits
    folders = [*sorted(Path(data_dir).glob(f"glue/{glue.dataset}/*/"), reverse=True), Path(data_dir)]
    for folder in folders:
        found = [(split, sorted(folder.glob(f"*-{split}.tfrecord*"))) for split in splits]
        if all(files for _, files in found):
            return found
    return []


def glue_rows(
    where: str, glue: GlueSet, data_dir: str, training: bool
) -> tuple[str, dict[Path, int], Iterator[tuple[Row, bool]]]:
    """What form the files have, the files, and the rows, each with whether it is of the domains of training. Raises UserError
    where neither form is there."""
    files = tsv_files(glue, data_dir, training)
    if all(file.is_file() for file in files):
        sizes = {file: file.stat().st_size for file in files}
        return "GLUE .tsv", sizes, _tsv_rows(files)
    if splits := record_files(glue, data_dir, training):
        sizes = {file: file.stat().st_size for _, listed in splits for file in listed}
        return "GLUE records of tensorflow_datasets", sizes, _record_rows(glue, splits)
    wanted = ", ".join(str(file) for file in files)
    raise UserError(
        f"{where}.data_dir = {data_dir!r}: holds neither {wanted} (GLUE's {glue.folder} with its line of column names) nor "
        f"glue/{glue.dataset}/VERSION/glue-*.tfrecord* of tensorflow_datasets; give {where}.data_dir=FOLDER"
    )


def _tsv_rows(files: Sequence[Path]) -> Iterator[tuple[Row, bool]]:
    for file in files:
        for row in read_rows(str(file), "tsv"):
            yield row, "mismatched" not in file.stem


def _record_rows(glue: GlueSet, splits: Sequence[tuple[str, list[Path]]]) -> Iterator[tuple[Row, bool]]:
    """With the column names of the .tsv files."""
    for split, files in splits:
        for file in files:
            for frame in read_tfrecords(file):
                try:
                    features = parse_example(frame.payload)
                except ParseError as error:
                    raise damaged(file, frame.number, frame.offset, f"it is no tf.train.Example: {error}") from None
                where = f"{file}: record {frame.number}"
                fields = {
                    ours: _text(features, theirs, where)
                    for ours, theirs in zip(glue.columns, glue.features, strict=True)
                }
                fields[glue.label] = glue.labels[_label(features, len(glue.labels), where)]
                yield Row(fields, where), "mismatched" not in split


def _text(features: dict[str, Feature], name: str, where: str) -> str:
    value = features.get(name)
    if not isinstance(value, list) or len(value) != 1:
        raise InputError(f"{where}: has no text {name!r}; it has {', '.join(sorted(features)) or 'nothing'}")
    return value[0].decode("utf-8", "replace")


def _label(features: dict[str, Feature], count: int, where: str) -> int:
    value = features.get("label")
    if value is None or isinstance(value, list) or len(value) != 1 or not 0 <= int(value[0]) < count:
        raise InputError(f"{where}: label should be one of 0 to {count - 1}; is it a test split, which has none?")
    return int(value[0])
