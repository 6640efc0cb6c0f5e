"""Training on labelled rows: the order of the features is computed, so any worker can make any batch at any time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import UserError
from headrace.evaluation.labelled import evaluate_labelled
from headrace.evaluation.room import Room
from headrace.labelled.features import Feature, FeatureRule, make_batch
from headrace.labelled.order import batches_from
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.streaming.executor import Streaming
from headrace.tasks import labelled_task_of
from headrace.tasks.labelled import LabelledSet
from headrace.text.batches import Batch
from headrace.text.examples import Cursor
from headrace.text.vocabulary import Vocabulary
from headrace.training.source import BatchesOfWorker


@dataclass(frozen=True)
class FeatureBatches:
    """The batches of a phase, for each worker its own."""

    features: Sequence[Feature]
    rule: FeatureRule
    batch_size: int
    cursor: Cursor
    num_batches: int
    seed: int
    phase: str
    shuffle: bool = True

    def __call__(self, worker: int, num_workers: int) -> Iterator[tuple[Batch, Cursor]]:
        order = batches_from(len(self.features), self.batch_size, self.cursor, self.seed, self.phase, self.shuffle)
        for k, (chosen, after) in enumerate(islice(order, self.num_batches)):
            if k % num_workers == worker:
                yield make_batch([self.features[i] for i in chosen], self.rule), after


@dataclass(frozen=True)
class LabelledSource:
    """A `headrace.training.source.Source` of labelled rows."""

    params: Params
    vocabulary: Vocabulary
    train: LabelledSet
    held_out: LabelledSet

    @property
    def metric(self) -> str:
        return self.params.evaluation.metric or labelled_task_of(self.params).metric(self.params)

    def check(self) -> None:
        if not self.train.features:
            raise UserError("data.train: no row is left to learn from; give more rows or lower data.held_out")

    def account(self, phase: int) -> tuple[str, dict[str, Any]]:
        given, count = self.params.training.phases[phase], len(self.train.features)
        epochs = given.steps * given.batch_size / count
        line = (
            f"Phase {phase}: sequence length {given.sequence_length}, {given.steps:,} steps of {given.batch_size} = "
            f"{epochs:.2f} epochs of {count:,} from {len(self.train.examples):,} rows"
        )
        for reason, number in self.train.notes.items():
            line += f"; {number:,} {reason}" if number else ""
        figures = {"examples": count, "rows": len(self.train.examples), "notes": dict(self.train.notes)}
        return line, figures

    def batches(
        self, phase: int, cursor: Cursor, num_batches: int, config: PretrainedConfig, microbatch_tokens: int
    ) -> BatchesOfWorker:
        given = self.params.training.phases[phase]
        rule = FeatureRule(
            given.sequence_length,
            getattr(config, "pad_token_id", None) or 0,
            microbatch_tokens,
            config.hidden_size,
            tuple(given.buckets) if given.buckets else None,
            loss_per_example=self.params.task.loss_per == "example",
            loss_weight=self.params.task.loss_weight,
        )
        return FeatureBatches(
            self.train.features,
            rule,
            given.batch_size,
            cursor,
            num_batches,
            self.params.run.seed,
            f"phase-{phase}",
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
        figures, _ = evaluate_labelled(
            self.params,
            model,
            self.held_out,
            precision,
            sequence_length=sequence_length,
            streaming=streaming,
            room=room,
        )
        return figures

    def shown_tokens(self, most: int) -> tuple[Sequence[int], Sequence[str]]:
        """The first entries of the vocabulary."""
        ids = range(min(most, self.vocabulary.size))
        return ids, [self.vocabulary.token_text(token) for token in ids]
