"""The rows of `data`, read, split and encoded: what a `LabelledSource` is made of."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from headrace.errors import UserError
from headrace.labelled.row import Row
from headrace.labelled.rows import read_rows
from headrace.params import Params
from headrace.progress import say
from headrace.run_folder import RunFolder
from headrace.tasks import labelled_task_of
from headrace.tasks.gold_spans import unmappable_spans
from headrace.tasks.labelled import LabelledSet, data_of
from headrace.text.files import expand_paths
from headrace.text.source import files_of, refuse_other_source
from headrace.text.tokens import document_hash, is_held_out, write_atomically
from headrace.text.vocabulary import Vocabulary
from headrace.training.fine_tuning import with_labels, with_steps
from headrace.training.labelled_source import LabelledSource


def open_labelled(params: Params, run: RunFolder, vocabulary: Vocabulary) -> LabelledSource:
    """Read and encode the rows, and fill in what the params leave open. Raises UserError naming file and line, or what
    differs from the rows the run began with."""
    task, data = labelled_task_of(params), data_of(params)
    rows, held_out = _split(params)
    train = [task.parse(row, params, need_label=True) for row in rows]
    judged = [task.parse(row, params, need_label=True) for row in held_out]
    if data.labels is None:
        params = with_labels(params, task.labels(train, params))
    length = max(phase.sequence_length for phase in params.training.phases)
    train_set = encode(params, vocabulary, train, length)
    hidden_size = task.config(params, vocabulary).hidden_size
    params = with_steps(params, max(1, len(train_set.features)), task.PEAK_LEARNING_RATE, hidden_size, bool(judged))
    judged = judged[: params.evaluation.examples]
    held_out_set = encode(params, vocabulary, judged, evaluation_length(params))
    _same_as_before(params, run)
    _list_unmappable([*train, *judged], vocabulary, run)
    return LabelledSource(params, vocabulary, train_set, held_out_set)


def with_rows(params: Params) -> Params:
    """What `open_labelled` fills in, as far as it can be told without a vocabulary: a row counts as one feature."""
    task = labelled_task_of(params)
    rows, held_out = _split(params)
    train = [task.parse(row, params, need_label=True) for row in rows]
    params = with_labels(params, data_of(params).labels or task.labels(train, params))
    hidden_size = task.config(params, None).hidden_size
    return with_steps(params, max(1, len(train)), task.PEAK_LEARNING_RATE, hidden_size, bool(held_out))


def evaluation_length(params: Params) -> int:
    return params.evaluation.sequence_length or params.training.phases[-1].sequence_length


def encode(params: Params, vocabulary: Vocabulary, examples: Sequence[Any], length: int) -> LabelledSet:
    notes: Counter[str] = Counter()
    features = labelled_task_of(params).features(examples, params, vocabulary, length, notes)
    return LabelledSet(examples, features, notes)


def _split(params: Params) -> tuple[list[Row], list[Row]]:
    """Rows to train on and rows to evaluate on."""
    data = data_of(params)
    rows = list(read_rows(data.train, data.format, data.encoding))
    if data.evaluation:
        return rows, list(read_rows(data.evaluation, data.format, data.encoding))
    if not data.held_out:
        return rows, []
    kept = [is_held_out(document_hash(_split_key(row)), data.held_out) for row in rows]
    if not any(kept) or all(kept):
        raise UserError(
            f"data.held_out = {data.held_out}: of {len(rows):,} rows {sum(kept):,} would be evaluated on; give more rows, "
            f"another share, files in data.evaluation, or held_out: 0"
        )
    sides = [[row for row, is_kept in zip(rows, kept, strict=True) if is_kept == side] for side in (False, True)]
    return sides[0], sides[1]


def _split_key(row: Row) -> str:
    """What decides on which side of the split a row is: rows about one context stay together."""
    return str(row.fields["context"]) if "context" in row.fields else json.dumps(row.fields, ensure_ascii=False)


def _list_unmappable(examples: Sequence[Any], vocabulary: Vocabulary, run: RunFolder) -> None:
    """Say how many marked spans tokens cannot give back exactly, and list them in the run folder."""
    found = unmappable_spans(examples, vocabulary)
    if not found:
        run.unmappable.unlink(missing_ok=True)
        return
    lines = [
        {"source": span.source, "start": span.span[0], "stop": span.span[1], "text": text, "why": span.why}
        for text, span in found
    ]
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    write_atomically(run.unmappable, text.encode("utf-8", "replace"))
    say(f"{len(found):,} marked spans do not begin and end where tokens do; {run.unmappable} lists them")


def _same_as_before(params: Params, run: RunFolder) -> None:
    """Refuse to go on from a checkpoint with other rows. Raises UserError naming what differs."""
    data = data_of(params)
    source = {
        "data": data.model_dump(mode="json", exclude={"train", "evaluation"}),
        "train": files_of(expand_paths(data.train)),
        "evaluation": files_of(expand_paths(data.evaluation)) if data.evaluation else [],
    }
    path = run.root / "data.json"
    if run.checkpoints.is_dir() and any(run.checkpoints.glob("step-*")):
        refuse_other_source(path, source)
    write_atomically(path, json.dumps(source, indent=1, ensure_ascii=False).encode())
