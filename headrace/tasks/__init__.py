"""What a model is trained to do. One module a task, all with the functions of `Task`; the one training loop, the step and
the evaluation take the task as an argument."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from headrace.params import Params, PhaseParams
from headrace.tasks import causal_lm, masked_lm
from headrace.text.batches import Batch, MakesBatches, Microbatch
from headrace.text.examples import ExampleRule
from headrace.text.vocabulary import Vocabulary

RunHead = Callable[..., Any]


class Task(Protocol):
    """What every task module has."""

    @property
    def HEAD(self) -> str:
        """Name of the segment that the task runs itself, through run_head, on the positions that need it."""
        ...

    def config(self, params: Params, vocabulary: Vocabulary | None) -> PretrainedConfig:
        """The model's config; None: as far as it can be told without a vocabulary. Raises UserError when the model does
        not fit the task."""
        ...

    def new_model(self, config: PretrainedConfig) -> PreTrainedModel:
        """A model on torch's default device."""
        ...

    def freeze_unused(self, model: Any, params: Params) -> None:
        """No gradient for weights that no loss depends on."""
        ...

    def example_rule(self, params: Params, sequence_length: int, phase: str, seed: int) -> ExampleRule:
        """How the task cuts text into examples."""
        ...

    def batch_rule(
        self,
        params: Params,
        vocabulary: Vocabulary,
        sequence_length: int,
        microbatch_tokens: int,
        phase: PhaseParams | None = None,
    ) -> MakesBatches:
        """How examples become arrays; phase None = as evaluation does."""
        ...

    def training_loss(
        self, model: Any, microbatch: Microbatch, device: torch.device, batch: Batch, run_head: RunHead
    ) -> tuple[Tensor, Tensor]:
        """This microbatch's share of the batch's loss (), and its summed losses (K,), detached."""
        ...

    def losses(self, sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
        """The batch's losses by the names of the records, from the sums (K,) over its microbatches; the training loss is
        their sum, None = there is none."""
        ...

    def evaluation_sums(self, model: Any, microbatch: Microbatch, device: torch.device, run_head: RunHead) -> Tensor:
        """What adds up over the microbatches of an evaluation (J,) float64."""
        ...

    def figures(
        self, sums: Sequence[float], num_examples: int, num_targets: int, num_pairs: int
    ) -> Mapping[str, float | None]:
        """The figures of an evaluation by the names of the records."""
        ...


TASKS: dict[str, Task] = {"masked_lm": masked_lm, "causal_lm": causal_lm}


def task_of(params: Params) -> Task:
    return TASKS[params.task.kind]
