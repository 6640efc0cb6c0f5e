"""Training on records: the order of the records is computed, so any batch can be made at any time by any worker."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import UserError
from headrace.evaluation.room import Room
from headrace.modelzoo.fine_tuning.source import Evaluates
from headrace.modelzoo.records.record_batches import RecordBatchRule, batches_from
from headrace.modelzoo.records.record_set import RecordSet
from headrace.modelzoo.run.records import OpenInput
from headrace.modelzoo.vocabulary import entries_of
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.streaming.executor import Streaming
from headrace.text.batches import Batch
from headrace.text.examples import Cursor
from headrace.training.source import BatchesOfWorker


@dataclass(frozen=True)
class RecordBatches:
    """The batches of a phase, for each worker its own."""

    records: RecordSet
    rule: RecordBatchRule
    batch_size: int
    cursor: Cursor
    num_batches: int
    seed: int
    phase: str
    shuffle: bool

    def __call__(self, worker: int, num_workers: int) -> Iterator[tuple[Batch, Cursor]]:
        return batches_from(
            self.records,
            self.rule,
            batch_size=self.batch_size,
            cursor=self.cursor,
            num_batches=self.num_batches,
            seed=self.seed,
            phase=self.phase,
            shuffle=self.shuffle,
            worker=worker,
            num_workers=num_workers,
        )


@dataclass(frozen=True)
class RecordSource:
    """A `headrace.training.source.Source` of records. evaluates None: nothing is evaluated while training."""

    params: Params
    input: OpenInput
    evaluates: Evaluates | None

    @property
    def vocabulary(self) -> None:
        return None

    @property
    def metric(self) -> None:
        """The newest checkpoint is taken for the best."""

    def check(self) -> None:
        """One pass must be enough where the params file says so."""
        phase, size = self.params.training.phases[0], len(self.input.records)
        if not self.input.facts.repeat and phase.steps * phase.batch_size > size:
            raise UserError(
                f"{self.input.where}.repeat: False, and {phase.steps:,} steps of {phase.batch_size} take more than the "
                f"{size:,} records there are; set repeat: True, or --max_steps {max(1, size // phase.batch_size)}"
            )

    def account(self, phase: int) -> tuple[str, dict[str, Any]]:
        given, size = self.params.training.phases[phase], len(self.input.records)
        epochs = given.steps * given.batch_size / size
        line = (
            f"Sequence length {given.sequence_length}, {given.steps:,} steps of {given.batch_size} records = {epochs:.2f} "
            f"epochs of {size:,} in {len(self.input.records.files)} files ({self.input.records.layout.name})"
        )
        return line, {"examples": size, "files": [str(file.path) for file in self.input.records.files]}

    def batches(
        self, phase: int, cursor: Cursor, num_batches: int, config: PretrainedConfig, microbatch_tokens: int
    ) -> BatchesOfWorker:
        given, facts = self.params.training.phases[phase], self.input.facts
        pad_id = getattr(config, "pad_token_id", None) or 0
        return RecordBatches(
            self.input.records,
            self.input.rule(self.params, given.sequence_length, config.hidden_size, pad_id, microbatch_tokens),
            given.batch_size,
            cursor,
            num_batches,
            self.params.run.seed if facts.shuffle_seed is None else facts.shuffle_seed,
            f"phase-{phase}",
            facts.shuffle,
        )

    def evaluate(
        self,
        model: PreTrainedModel,
        precision: Precision,
        *,
        step: int,
        sequence_length: int,
        streaming: Streaming | None,
        room: Room | None,
    ) -> dict[str, Any]:
        if self.evaluates is None:
            return {}
        return self.evaluates(
            model, precision, step=step, sequence_length=sequence_length, streaming=streaming, room=room
        )

    def shown_tokens(self, most: int) -> tuple[Sequence[int], Sequence[str]]:
        """The first entries of the vocabulary: records do not tell which are common."""
        count = min(most, self.params.text.vocabulary.size)
        name = self.input.facts.vocab_file
        entries = entries_of(Path(name)).texts[:count] if name is not None and Path(name).exists() else ()
        return range(count), [*entries, *(str(i) for i in range(len(entries), count))]
