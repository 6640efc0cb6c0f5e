"""Training on features: the one training loop's view of an input section, with the tool's own figures."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import UserError
from headrace.evaluation.room import Room
from headrace.labelled.features import FeatureRule
from headrace.modelzoo.fine_tuning.feature_set import FeatureSet
from headrace.params import Params
from headrace.planning.device import Precision
from headrace.streaming.executor import Streaming
from headrace.text.examples import Cursor
from headrace.training.labelled_source import FeatureBatches
from headrace.training.source import BatchesOfWorker

Evaluates = Callable[..., dict[str, Any]]


def feature_rule(params: Params, length: int, config: PretrainedConfig, microbatch_tokens: int) -> FeatureRule:
    """How features become arrays, and what their loss is divided by."""
    phase = params.training.phases[0]
    return FeatureRule(
        length,
        getattr(config, "pad_token_id", None) or 0,
        microbatch_tokens,
        config.hidden_size,
        tuple(phase.buckets) if phase.buckets and phase.buckets[-1] == length else None,
        loss_per_example=params.task.loss_per == "example",
        loss_weight=params.task.loss_weight,
    )


@dataclass(frozen=True)
class FeatureSource:
    """A `headrace.training.source.Source` of features. evaluates None: nothing is evaluated while training."""

    params: Params
    input: FeatureSet
    evaluates: Evaluates | None

    @property
    def vocabulary(self) -> None:
        """The params say how large it is."""

    @property
    def metric(self) -> None:
        """The newest checkpoint is taken for the best."""

    def check(self) -> None:
        """One pass must be enough where the params file says so."""
        phase, size = self.params.training.phases[0], self.input.size
        if not self.input.facts.repeat and phase.steps * phase.batch_size > size:
            raise UserError(
                f"{self.input.where}.repeat: False, and {phase.steps:,} steps of {phase.batch_size} take more than the "
                f"{size:,} examples there are; set repeat: True, or --max_steps {max(1, size // phase.batch_size)}"
            )

    def account(self, phase: int) -> tuple[str, dict[str, Any]]:
        given, size = self.params.training.phases[phase], self.input.size
        line = (
            f"Sequence length {given.sequence_length}, {given.steps:,} steps of {given.batch_size} examples = "
            f"{given.steps * given.batch_size / size:.2f} epochs of {size:,} ({self.input.form})"
        )
        return line, {"examples": size, "rows": size, "notes": {}}

    def batches(
        self, phase: int, cursor: Cursor, num_batches: int, config: PretrainedConfig, microbatch_tokens: int
    ) -> BatchesOfWorker:
        given, facts = self.params.training.phases[phase], self.input.facts
        return FeatureBatches(
            self.input.features,
            feature_rule(self.params, given.sequence_length, config, microbatch_tokens),
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
        """The first ids."""
        size = (self.params.model.config or {})["vocab_size"]
        ids = range(min(most, size))
        return ids, [str(i) for i in ids]
