"""Where the batches of a run come from: text of ours (`headrace.training.text_source`), or whatever else makes batches."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from transformers import PretrainedConfig, PreTrainedModel

from headrace.evaluation.room import Room
from headrace.planning.device import Precision
from headrace.streaming.executor import Streaming
from headrace.text.batches import Batch
from headrace.text.examples import Cursor
from headrace.text.vocabulary import Vocabulary

BatchesOfWorker = Callable[[int, int], Iterator[tuple[Batch, Cursor]]]
"""(worker, number of workers) -> the batches that this worker makes, in order, each with the cursor after it: batch k is made
by worker k mod their number. Workers get a copy of it."""


class Source(Protocol):
    """What the training loop asks of the data."""

    @property
    def vocabulary(self) -> Vocabulary | None:
        """None: the params alone say how large the model's is."""
        ...

    @property
    def metric(self) -> str | None:
        """The figure of an evaluation that tells the best checkpoint, which is kept; None: none is."""
        ...

    def check(self) -> None:
        """Raise UserError where there is too little to train on."""
        ...

    def account(self, phase: int) -> tuple[str, dict[str, Any]]:
        """What a phase makes of the data: a line for the user, and the figures that the run folder keeps."""
        ...

    def batches(
        self, phase: int, cursor: Cursor, num_batches: int, config: PretrainedConfig, microbatch_tokens: int
    ) -> BatchesOfWorker:
        """The phase's next batches, from the cursor on."""
        ...

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
        """The figures of an evaluation as `headrace.evaluation.evaluate` names them; empty when nothing is held out."""
        ...

    def shown_tokens(self, most: int) -> tuple[Sequence[int], Sequence[str]]:
        """The ids and texts of tokens whose embeddings are worth a look."""
        ...
