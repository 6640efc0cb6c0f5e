"""Training on a run's own tokens: examples are cut from documents, masks are drawn, batches are made as they are needed."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from headrace.evaluation.evaluate import evaluate
from headrace.evaluation.room import Room
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.streaming.executor import Streaming
from headrace.tasks import text_task_of
from headrace.text.batches import Batch, MakesBatches
from headrace.text.examples import Cursor, ExampleRule, account, check_enough_documents, examples_from
from headrace.text.tokens import TokenFolder
from headrace.text.vocabulary import Vocabulary
from headrace.training.source import BatchesOfWorker


@dataclass(frozen=True)
class TextBatches:
    """token folder -> examples in the phase's order -> batch k = examples [k B, (k + 1) B).

    Every worker walks the same order, so the batches are the same for any number of workers."""

    tokens: TokenFolder
    example_rule: ExampleRule
    batch_rule: MakesBatches
    batch_size: int
    cursor: Cursor
    num_batches: int

    def __call__(self, worker: int, num_workers: int) -> Iterator[tuple[Batch, Cursor]]:
        shards = self.tokens.shards("train")
        examples = examples_from(shards, self.example_rule, self.cursor)
        for k in range(self.num_batches):
            chosen = list(islice(examples, self.batch_size))
            if k % num_workers == worker:
                spans, keys, cursors = zip(*chosen, strict=True)
                yield self.batch_rule.batch(shards, spans, keys), cursors[-1]


@dataclass(frozen=True)
class TextSource:
    """A `headrace.training.source.Source` of the documents in a token folder."""

    params: Params
    tokens: TokenFolder
    vocabulary: Vocabulary

    @property
    def metric(self) -> None:
        """The newest checkpoint of pretraining is the best."""

    def check(self) -> None:
        check_enough_documents(self.tokens.shards("train"), self.params.task.examples)

    def _example_rule(self, phase: int) -> ExampleRule:
        length = self.params.training.phases[phase].sequence_length
        return text_task_of(self.params).example_rule(self.params, length, f"phase-{phase}", self.params.run.seed)

    def account(self, phase: int) -> tuple[str, dict[str, Any]]:
        given = self.params.training.phases[phase]
        figures = account(self.tokens.shards("train"), self._example_rule(phase))
        epochs = given.steps * given.batch_size / figures["examples"]
        line = (
            f"Phase {phase}: sequence length {given.sequence_length}, {given.steps:,} steps of "
            f"{given.batch_size} examples = {epochs:.2f} epochs of {figures['examples']:,}; "
            f"{figures['tokens_used'] / figures['tokens']:.2%} of {figures['tokens']:,} tokens used"
        )
        for reason, count in figures["dropped"].items():
            line += f", {count:,} {reason}"
        if figures["random_next_share"] is not None:
            line += f"; next sentences: 0 = follows, 1 = random, {figures['random_next_share']:.1%} random"
        return line, figures

    def batches(
        self, phase: int, cursor: Cursor, num_batches: int, config: PretrainedConfig, microbatch_tokens: int
    ) -> BatchesOfWorker:
        given = self.params.training.phases[phase]
        rule = text_task_of(self.params).batch_rule(
            self.params, self.vocabulary, given.sequence_length, microbatch_tokens, given
        )
        return TextBatches(self.tokens, self._example_rule(phase), rule, given.batch_size, cursor, num_batches)

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
        return evaluate(
            self.params,
            model,
            self.tokens,
            self.vocabulary,
            precision,
            sequence_length=sequence_length,
            streaming=streaming,
            room=room,
        )

    def shown_tokens(self, most: int) -> tuple[Sequence[int], Sequence[str]]:
        ids = self.tokens.report["commonest_token_ids"][:most]
        return ids, [self.vocabulary.token_text(token) for token in ids]
