"""The section task: what is learnt, and from which examples."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from headrace.sections import Fraction, NonNegativeInt, PositiveInt, Section

LABELLED = (
    "classification",
    "regression",
    "token_classification",
    "question_answering",
    "multiple_choice",
    "summarization",
)
"""Tasks that learn from rows of `data`; causal_lm does when `data` is given."""

# What belongs to one kind alone (masked_lm's own keys are also those of no other).
_KEYS = {
    "masked_lm": ("mask_rate", "whole_words", "short_example_rate"),
    "causal_lm": ("isolate_documents",),
    "question_answering": ("stride", "max_answer_tokens", "unanswerable"),
    "summarization": ("sentences",),
}


class TaskParams(Section):
    kind: Literal[
        "masked_lm",
        "causal_lm",
        "classification",
        "regression",
        "token_classification",
        "question_answering",
        "multiple_choice",
        "summarization",
    ] = "masked_lm"
    """masked_lm: BERT pretraining, with next-sentence prediction when examples are sentence pairs; causal_lm: GPT
    pretraining, every token from those before it, or completions of prompts when `data` is given. From the rows of `data`:
    classification of a text or a pair; regression, the same with a number for a label; token_classification: tags of words
    or spans of characters; question_answering: an answer that stands in a context; multiple_choice; summarization: the
    sentences of a text that sum it up."""
    examples: Literal["sentence_pairs", "documents", "sentences", "windows", "rows"] = "sentence_pairs"
    """For masked_lm, sentence_pairs (its default): BERT's A/B pairs with next-sentence prediction; documents: consecutive
    sentences of one document up to the sequence length; sentences: each sentence alone. For causal_lm, windows (its
    default): documents in random order, one after the other, cut every sequence_length tokens. rows: of `data`."""
    isolate_documents: bool = False
    """causal_lm: documents in one window do not see each other, and positions restart in each (GPT-3 lets them)."""
    loss_per: Literal["target", "example"] = "target"
    """What the summed loss of predicted tokens is divided by, over the whole batch: their number, or the examples'."""
    loss_weight: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Factor of the loss of predicted tokens, beside next-sentence prediction's 1 (for causal_lm, of all of the loss). In
    evaluations neither counts: their losses are means over predicted tokens."""
    mask_rate: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.15
    """Share of an example's tokens that are predicted; masked_lm."""
    whole_words: bool = False
    """Choose whole words to predict, never parts of them (`text.words` says what a word is); masked_lm."""
    short_example_rate: Fraction = 0.1
    """Share of examples made shorter than the sequence length on purpose (BERT's short_seq_prob); sentence_pairs and
    documents."""
    stride: NonNegativeInt = 128
    """Tokens that neighbouring windows of a long context share; question_answering."""
    max_answer_tokens: PositiveInt = 30
    """Longest answer; question_answering."""
    unanswerable: bool = False
    """Some questions have no answer in their context (SQuAD 2.0), and "" may be predicted; question_answering."""
    sentences: PositiveInt = 3
    """How many sentences a summary has; summarization."""

    @model_validator(mode="before")
    @classmethod
    def _examples_of_the_kind(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("examples") is not None:
            return given
        kind = given.get("kind")
        return {
            **given,
            "examples": "rows" if kind in LABELLED else {"causal_lm": "windows"}.get(str(kind), "sentence_pairs"),
        }

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> "TaskParams":
        fitting = {"masked_lm": ("sentence_pairs", "documents", "sentences"), "causal_lm": ("windows", "rows")}
        allowed = fitting.get(self.kind, ("rows",))
        if self.examples not in allowed:
            listed = " or ".join(filter(None, [", ".join(allowed[:-1]), allowed[-1]]))
            raise ValueError(f"task.examples = {self.examples!r} does not fit task.kind = {self.kind!r}; use {listed}")
        for kind, names in _KEYS.items():
            for name in names if kind != self.kind else ():
                if (value := getattr(self, name)) != type(self).model_fields[name].default:
                    raise ValueError(
                        f"task.{name} = {value!r} has no meaning for task.kind = {self.kind!r}; leave it out"
                    )
        return self
