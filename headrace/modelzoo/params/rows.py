"""The sections data and task of a fine-tuning file, and the vocabulary its texts are read with."""

import json
from pathlib import Path

from headrace.errors import UserError
from headrace.modelzoo.fine_tuning import glue
from headrace.modelzoo.params.draft import OURS, Draft
from headrace.modelzoo.params.inputs import InputFacts, located_path
from headrace.modelzoo.params.keys import Taken
from headrace.modelzoo.params.model import FineTuning
from headrace.modelzoo.params.parts import Parts

KINDS = {
    "classifier": "classification",
    "token_classifier": "token_classification",
    "qa": "question_answering",
    "extractive_summarization": "summarization",
}
NER_LABELS = ["[PAD]", "B", "I", "O", "X", "[CLS]", "[SEP]"]
"""Those that write_csv_ner.py and write_tfrecords_ner.py give, in their order."""


def put_rows(
    draft: Draft,
    parts: Parts,
    head: FineTuning,
    source: Taken,
    train: InputFacts | None,
    evaluation: InputFacts | None,
    vocabulary: tuple[int, str],
) -> None:
    """data, task, and text as far as rows need it. Raises UserError for a data set that is not named."""
    facts = train or evaluation
    assert facts is not None
    if not facts.data_dir:
        raise UserError(f"{source.path}.data_dir: is required and not given")
    draft.put("text.language", "en", "the tool's tokenizers are for English")
    if source.has("do_lower") or facts.lowercase:
        draft.put("text.lowercase", facts.lowercase, source.where("do_lower"))
    if facts.vocab_file is not None:
        draft.put("text.vocabulary.load", facts.vocab_file, source.at("vocab_file"))
        draft.put("text.vocabulary.size", vocabulary[0], vocabulary[1])
    known = glue.PROCESSORS.get(facts.data_processor or "")
    for name, given, taken in (("train", train or facts, source), ("evaluation", evaluation, parts.eval)):
        if given is None or taken is None or not given.data_dir:
            continue
        at = taken.at("data_dir" if taken.has("data_dir") else "data_file")
        draft.put(f"data.{name}", _files(known, given, parts), at)
    if evaluation is None:
        draft.put("data.held_out", 0.0, "no eval_input")
    if known is not None:
        _put_glue(draft, head, known, parts)
    elif head.job == "token_classifier":
        _put_tags(draft, parts, head, facts, source)
    kind = KINDS[head.job]
    draft.put("task.kind", kind, f"{parts.model.path} ({head.model_class})")
    if head.job in ("token_classifier", "extractive_summarization"):
        where = parts.model.where("loss_weight")
        draft.put("task.loss_per", "example", "the tool sums over a batch's targets and divides by its examples")
        draft.put("task.loss_weight", head.loss_weight, where)
    if head.job == "qa":
        draft.put("task.loss_weight", 2.0, "the tool adds up the losses of start and end")
    if head.job == "extractive_summarization" and head.num_labels == 1:
        draft.put("model.config.id2label", {"0": "taken"}, "TensorFlow's head has one output, a sigmoid")


def _files(known: glue.GlueSet | None, facts: InputFacts, parts: Parts) -> list[str]:
    """GLUE's .tsv files, which any run reads; of records the folders."""
    if known is None:
        parts.notes.add(
            f"data: what {facts.data_processor} reads, which headrace-run does; `headrace run` reads CoNLL, SQuAD, JSON Lines and "
            f"tables instead: docs/fine-tuning.md"
        )
        return list(facts.data_dir)
    files = glue.tsv_files(known, facts.data_dir[0], facts.is_training)
    if not files[0].is_file() and glue.record_files(known, facts.data_dir[0], facts.is_training):
        parts.notes.add(f"data: records of tensorflow_datasets in {facts.data_dir[0]}, which headrace-run reads")
        return list(facts.data_dir)
    return [str(file) for file in files]


def _put_glue(draft: Draft, head: FineTuning, known: glue.GlueSet, parts: Parts) -> None:
    where = f"GLUE's {known.folder}"
    draft.put("data.format", "tsv", where)
    for name, column in zip(("text", "pair"), known.columns, strict=False):
        draft.put(f"data.fields.{name}", column, where)
    draft.put("data.fields.label", known.label, where)
    labels = list(known.labels)
    draft.put("data.labels", labels, where)
    if head.num_labels != len(labels):
        parts.notes.add(
            f"{parts.model.path}: asks for {head.num_labels} labels, and {known.folder} has {len(labels)}, which are taken: "
            f"{', '.join(labels)}"
        )
    if head.problem_type not in (None, "single_label_classification"):
        raise UserError(
            f"{parts.model.at('problem_type')} = {head.problem_type!r}: {known.folder} has one label each; set "
            f"problem_type: single_label_classification"
        )


def _put_tags(draft: Draft, parts: Parts, head: FineTuning, facts: InputFacts, source: Taken) -> None:
    """data.labels: the tags themselves, in the order of label_vocab_file."""
    if head.include_padding_in_loss:
        raise UserError(
            f"{parts.model.at('include_padding_in_loss')} = True: padding never counts here; set it to False, which is the "
            f"tool's default"
        )
    written = head.label_vocab_file
    path = Path(located_path(written, parts)) if written else None
    if path is not None and path.is_file():
        draft.put("data.labels", _labels_of(path, head, parts), source.at("label_vocab_file"))
    elif head.num_labels == len(NER_LABELS):
        parts.notes.add(
            f"{source.at('label_vocab_file')} = {written!r}: not found; the {len(NER_LABELS)} labels of the tool's own scripts are "
            f"taken: {' '.join(NER_LABELS)}"
        )
        draft.put("data.labels", NER_LABELS, OURS)


def _labels_of(path: Path, head: FineTuning, parts: Parts) -> list[str]:
    """The names of label2id.json in the order of their numbers. Raises UserError."""
    try:
        numbers = json.loads(path.read_text("utf-8"))
        names = sorted(numbers, key=numbers.__getitem__)
        whole = [numbers[name] for name in names] == list(range(len(names)))
    except (OSError, ValueError, TypeError, AttributeError):
        names, whole = [], False
    if not whole:
        raise UserError(f'{path}: should be JSON like {{"O": 0, "B": 1}}, with a number for each label, from 0 on')
    if len(names) != head.num_labels:
        raise UserError(
            f"{parts.model.at('num_labels')} = {head.num_labels}, and {path} has {len(names)} labels ({', '.join(names)}); give "
            f"{parts.model.at('num_labels')}={len(names)}"
        )
    return list(names)
