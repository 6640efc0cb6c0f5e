"""The records that an input section names, opened and checked against it before anything else is done."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import UserError
from headrace.modelzoo.params import InputFacts
from headrace.modelzoo.records import layouts
from headrace.modelzoo.records.layouts import Layout
from headrace.modelzoo.records.record_batches import RecordBatchRule
from headrace.modelzoo.records.record_set import RecordSet, check_records, open_records
from headrace.modelzoo.records.token_rows import TokenRule
from headrace.modelzoo.vocabulary import SPECIAL, Entries, entries_of, ids_of_entries
from headrace.params import Params
from headrace.text.masking import MaskRule
from headrace.text.vocabulary.vocabulary import NOT_TEXT

# Data processor -> the layouts it reads: with next sentences, and without (disable_nsp, or of MLM alone).
PROCESSORS: Mapping[str, tuple[Layout | None, Layout]] = {
    "BertTfRecordsProcessor": (layouts.STATIC_PAIRS, layouts.STATIC_MLM),
    "BertMlmOnlyTfRecordsProcessor": (None, layouts.STATIC_MLM),
    "BertMlmOnlyTfRecordsStaticMaskProcessor": (None, layouts.STATIC_MLM),
    "BertMlmOnlyTfRecordsDynamicMaskProcessor": (None, layouts.TOKEN_MLM),
    "BertCSVDataProcessor": (layouts.STATIC_PAIRS, layouts.STATIC_MLM),
    "BertCSVDynamicMaskDataProcessor": (layouts.TOKEN_PAIRS, layouts.TOKEN_MLM),
    "GptTfRecordsProcessor": (None, layouts.CAUSAL),
    "GptHDF5DataProcessor": (None, layouts.CAUSAL),
    "GptHDF5MapDataProcessor": (None, layouts.CAUSAL),
}


@dataclass(frozen=True)
class OpenInput:
    """An input section with its records. ids: of the vocabulary's entries, where the records are masked at load."""

    where: str
    facts: InputFacts
    records: RecordSet
    ids: Mapping[str, int] | None

    @property
    def size(self) -> int:
        return len(self.records)

    def lines(self) -> list[str]:
        """What is read, for the user."""
        records = self.records
        columns = ", ".join(f"{name} {column.length}" for name, column in records.columns.items())
        first = f"{self.where}: {self.size:,} records in {len(records.files)} files: {records.layout.name} ({columns})"
        return [first, *(f"note: {note}" for note in records.notes)]

    def description(self) -> dict[str, Any]:
        """For records.json."""
        records = self.records
        return {
            "processor": self.facts.data_processor,
            "layout": records.layout.name,
            "columns": {name: column.length for name, column in records.columns.items()},
            "num_records": self.size,
            "files": [[str(file.path), file.num_records, file.path.stat().st_size] for file in records.files],
            "notes": list(records.notes),
        }

    def rule(
        self, params: Params, length: int, hidden_size: int, pad_id: int, microbatch_tokens: int
    ) -> RecordBatchRule:
        """How the records become batches of this run."""
        phase = params.training.phases[0]
        mask, unmasked = None, ()
        if self.ids is not None:
            ids, special = self.ids, {self.ids[text] for text in SPECIAL}
            mask = MaskRule(
                self.facts.mask_rate,
                self.facts.max_predictions or max(1, round(self.facts.mask_rate * length)),
                self.facts.whole_words,
                ids["[MASK]"],
                ids["[UNK]"],
                np.array(sorted(i for text, i in ids.items() if i not in special and not NOT_TEXT.fullmatch(text))),
            )
            unmasked = tuple(ids[text] for text in SPECIAL if text != "[UNK]")
        return RecordBatchRule(
            sequence_length=length,
            pad_id=pad_id,
            microbatch_tokens=microbatch_tokens,
            hidden_size=hidden_size,
            buckets=tuple(phase.buckets) if phase.buckets and phase.buckets[-1] == length else None,
            use_pairs=params.task.examples == "sentence_pairs",
            mask=mask,
            unmasked_ids=unmasked,
            loss_per_example=(self.facts.loss_per or params.task.loss_per) == "example",
            loss_weight=self.facts.loss_weight if self.facts.loss_per else params.task.loss_weight,
        )


def open_input(where: str, facts: InputFacts, params: Params) -> OpenInput:
    """Open what an input section names. where: the section, for messages.

    Raises UserError or InputError: no such processor, folder or vocabulary, and all that `open_records` and `check_records`
    raise about the files."""
    processor = facts.data_processor
    if processor is None or processor not in PROCESSORS:
        raise UserError(
            f"{where}.data_processor = {processor!r}: its data cannot be read here; there are {', '.join(PROCESSORS)}"
        )
    pairs, alone = PROCESSORS[processor]
    layout = pairs if params.task.examples == "sentence_pairs" else alone
    if layout is None:
        raise UserError(
            f"{where}.data_processor = {processor!r}: its records have no next sentences, and the model predicts them; set "
            f"model.disable_nsp: True, or choose {' or '.join(name for name, (each, _) in PROCESSORS.items() if each)}"
        )
    for folder in facts.data_dir:
        if not any(mark in folder for mark in "*?[") and not Path(folder).exists():
            raise UserError(f"{where}.data_dir = {folder!r}: no such file or folder; give {where}.data_dir=FOLDER")
    size = params.text.vocabulary.size
    ids, tokens = None, None
    if layout.is_tokens:
        ids, entries = _vocabulary(where, facts)
        assert facts.sequence_length is not None
        tokens = TokenRule(
            ids,
            ids["[UNK]"],
            facts.sequence_length,
            facts.lowercase,
            has_pieces=entries.are_pieces,
            find_words=facts.whole_words,
        )
    records = open_records(
        facts.data_dir,
        layout=layout,
        max_sequence_length=facts.sequence_length,
        max_predictions_per_seq=facts.max_predictions,
        vocabulary_size=size,
        tokens=tokens,
    )
    notes = (*records.notes, *check_records(records))
    return OpenInput(where, facts, RecordSet(records.files, size, notes), ids)


def _vocabulary(where: str, facts: InputFacts) -> tuple[dict[str, int], Entries]:
    """The ids of the entries of vocab_file, special ones under their usual names, too; and the entries."""
    name = facts.vocab_file
    if name is None or not Path(name).exists():
        raise UserError(
            f"{where}.vocab_file = {name!r}: no such file, and records of tokens need it to become ids; give "
            f"{where}.vocab_file=PATH"
        )
    entries = entries_of(Path(name))
    if missing := [text for text in SPECIAL if text not in entries.special]:
        raise UserError(f"{where}.vocab_file = {name}: has no {', '.join(missing)}, which masking needs")
    ids = ids_of_entries(Path(name), facts.lowercase)
    return ids, entries
