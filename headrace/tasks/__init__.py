"""What a model is trained to do. One module a task, all with the functions of `Task`; the one training loop and step take
the task as an argument. Tasks learn from text (`TextTask`) or from labelled rows (`LabelledTask`)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from headrace.labelled.features import Feature
from headrace.labelled.row import Row
from headrace.params import Params, PhaseParams
from headrace.tasks import (
    causal_lm,
    classification,
    completion,
    masked_lm,
    multiple_choice,
    question_answering,
    summarization,
    token_classification,
)
from headrace.text.batches import Batch, MakesBatches, Microbatch
from headrace.text.examples import ExampleRule
from headrace.text.vocabulary import Vocabulary

RunHead = Callable[..., Any]


class Task(Protocol):
    """What every task module has."""

    @property
    def HEAD(self) -> str:
        """Name of the segment that the task runs itself, through run_head, on the positions that need it; "" = none."""
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

    def training_loss(
        self, model: Any, microbatch: Microbatch, device: torch.device, batch: Batch, run_head: RunHead
    ) -> tuple[Tensor, Tensor]:
        """This microbatch's share of the batch's loss (), and its summed losses (K,), detached."""
        ...

    def losses(self, sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
        """The batch's losses by the names of the records, from the sums (K,) over its microbatches; the training loss is
        their sum, None = there is none."""
        ...


class TextTask(Task, Protocol):
    """A task whose examples are cut from documents."""

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

    def evaluation_sums(self, model: Any, microbatch: Microbatch, device: torch.device, run_head: RunHead) -> Tensor:
        """What adds up over the microbatches of an evaluation (J,) float64."""
        ...

    def figures(
        self, sums: Sequence[float], num_examples: int, num_targets: int, num_pairs: int
    ) -> Mapping[str, float | None]:
        """The figures of an evaluation by the names of the records."""
        ...


class LabelledTask(Task, Protocol):
    """A task whose examples are the rows of `data`. An example is what the task's `parse` makes of a row, with `source`."""

    @property
    def PEAK_LEARNING_RATE(self) -> float:
        """What fine-tuning of models of this kind begins with where the params do not say."""
        ...

    def metric(self, params: Params) -> str:
        """The figure that tells the best checkpoint."""
        ...

    def parse(self, row: Row, params: Params, need_label: bool) -> Any:
        """An example. need_label False: to be predicted, a label may be missing. Raises InputError naming the row."""
        ...

    def truth(self, example: Any) -> dict[str, Any]:
        """What is known of an example, to stand beside its prediction in a file."""
        ...

    def labels(self, examples: Sequence[Any], params: Params) -> list[str] | None:
        """The labels that occur, in the order of the model's outputs; None: the task has none."""
        ...

    def rows_each(self, params: Params) -> int:
        """Rows of a feature."""
        ...

    def features(
        self, examples: Sequence[Any], params: Params, vocabulary: Vocabulary, length: int, notes: Counter[str]
    ) -> list[Feature]:
        """What the model reads of the examples, in their order; one or more each, at most `length` tokens a row. notes: what
        was cut or left out, by reason. Raises UserError for an unknown label."""
        ...

    def full_labels(self, params: Params, num_rows: int) -> np.ndarray:
        """Labels of a microbatch that is only measured."""
        ...

    def outputs(self, model: Any, microbatch: Microbatch, device: torch.device, run_head: RunHead) -> list[np.ndarray]:
        """What the model says of each feature of the microbatch."""
        ...

    def predictions(
        self, outputs: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[Any], params: Params
    ) -> list[dict[str, Any]]:
        """One JSON object an example. outputs: those of `features`, which are all of the examples'."""
        ...

    def figures(
        self,
        outputs: Sequence[np.ndarray],
        predictions: Sequence[dict[str, Any]],
        features: Sequence[Feature],
        examples: Sequence[Any],
        params: Params,
    ) -> dict[str, float | None]:
        """The figures of an evaluation by the names of the records, with how many examples they rest on."""
        ...


_TEXT: dict[str, TextTask] = {"masked_lm": masked_lm, "causal_lm": causal_lm}
_LABELLED: dict[str, LabelledTask] = {
    "classification": classification,
    "regression": classification,
    "token_classification": token_classification,
    "question_answering": question_answering,
    "multiple_choice": multiple_choice,
    "summarization": summarization,
    "causal_lm": completion,
}


def task_of(params: Params) -> Task:
    return labelled_task_of(params) if params.data is not None else text_task_of(params)


def text_task_of(params: Params) -> TextTask:
    return _TEXT[params.task.kind]


def labelled_task_of(params: Params) -> LabelledTask:
    return _LABELLED[params.task.kind]
