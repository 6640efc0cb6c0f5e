"""The section data: labelled rows for fine-tuning, in place of text."""

from typing import Any, Literal

from pydantic import Field, field_validator

from headrace.sections import BelowOne, Section


class FieldsParams(Section):
    """What the columns or keys of a row are called; each default is the name itself."""

    text: str = "text"
    """classification, token_classification with spans, summarization."""
    pair: str | None = None
    """classification of pairs: the second text."""
    label: str = "label"
    """classification, multiple_choice (the number of the right choice, from 0)."""
    tokens: str = "tokens"
    """token_classification of words: a list of words, beside `tags`; rows without it are read as `text` with `spans`."""
    tags: str = "tags"
    """One tag a word: O, B-TYPE, I-TYPE (or those of IOB1, BIOES)."""
    spans: str = "spans"
    """token_classification of characters: a list of {"span": [start, stop], "type": ...} over `text`; "start", "end" or
    "stop", and "label" are understood as well, and [start, stop, type]."""
    question: str = "question"
    """question_answering, multiple_choice."""
    context: str = "context"
    """question_answering."""
    answers: str = "answers"
    """question_answering: {text: [...], answer_start: [...]}, as in SQuAD, or a list of {text, answer_start}."""
    choices: list[str] = ["choices"]
    """multiple_choice: one column that holds a list, or one column a choice."""
    summary: str = "summary"
    """summarization."""
    prompt: str = "prompt"
    """causal_lm."""
    completion: str = "completion"
    """causal_lm: what is to be learnt; the prompt is given."""

    @field_validator("choices", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class DataParams(Section):
    train: list[str] = Field(min_length=1)
    """Files, folders or globs of labelled rows."""
    evaluation: list[str] = []
    """Rows to evaluate on; default: `held_out` of the training rows."""
    format: Literal["auto", "jsonl", "json", "csv", "tsv", "conll", "squad"] = "auto"
    """How rows lie in the files; `auto` goes by the name, then by what is there."""
    encoding: str = "auto"
    """Character encoding; `auto` detects UTF-8, UTF-16, Shift-JIS and EUC-JP."""
    fields: FieldsParams = FieldsParams()
    labels: list[str] | None = None
    """All labels in the order of the model's outputs; default: those of the training rows, sorted. token_classification:
    the types of entities, without B- and I-; where O is among them, the tags themselves."""
    held_out: BelowOne = 0.1
    """Share of the training rows kept for evaluation where `evaluation` names no files, chosen by a hash of the row."""

    @field_validator("train", "evaluation", mode="before")
    @classmethod
    def _files(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("labels")
    @classmethod
    def _each_once(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError("should name all labels, each once")
        return value
