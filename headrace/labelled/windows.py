"""A question and a long context -> windows that overlap; answers -> targets; logits -> the best answer in the raw text.

    [CLS] question [SEP] context[first : first + n] [SEP]     the next window begins n - overlap tokens further on

Windows and choice are those of transformers' question-answering pipeline (which versions from 5.3 no longer have).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from headrace.errors import UserError
from headrace.labelled.spans import Encoded, span_of_tokens
from headrace.text.vocabulary import Vocabulary

MAX_ANSWER_TOKENS = 15


@dataclass(frozen=True)
class Window:
    ids: np.ndarray
    """(T,) int64, with special tokens"""
    types: np.ndarray
    """(T,) int64, 1 from the context on"""
    first: int
    """the context token this window begins with"""
    offset: int
    """the position of that token in the window"""
    num_tokens: int
    """of the context"""


@dataclass(frozen=True)
class Answer:
    text: str
    start: int
    stop: int
    score: float


def max_question_tokens(max_length: int) -> int:
    """A longer question is cut at its end, so that half of the window is left for the context."""
    return (max_length - 3) // 2


def windows_of(
    question: Encoded, context: Encoded, vocabulary: Vocabulary, max_length: int = 384, overlap: int = 128
) -> list[Window]:
    """At least one window, the last reaches the end of the context. overlap: context tokens two neighbours share."""
    asked = question.ids[: max_question_tokens(max_length)]
    room = max_length - 3 - len(asked)
    if not 0 <= overlap < room:
        raise UserError(
            f"windows of {max_length} tokens with an overlap of {overlap} leave no way to go on: beside the question "
            f"there is room for {room} tokens of the context; use a smaller task.stride or a longer sequence_length."
        )
    head = np.concatenate([[vocabulary.cls_id], asked, [vocabulary.sep_id]]).astype(np.int64)
    windows = []
    first = 0
    while True:
        part = context.ids[first : first + room]
        ids = np.concatenate([head, part, [vocabulary.sep_id]])
        types = (np.arange(len(ids)) >= len(head)).astype(np.int64)
        windows.append(Window(ids, types, first, len(head), len(part)))
        if first + room >= len(context):
            return windows
        first += room - overlap


def targets_of(window: Window, tokens: tuple[int, int] | None) -> tuple[int, int]:
    """Positions of the first and the last token of the answer [a, b); (0, 0), the [CLS], when there is none or the window
    does not hold all of it."""
    if tokens is None:
        return 0, 0
    a, b = tokens
    if a < window.first or b > window.first + window.num_tokens:
        return 0, 0
    return window.offset + a - window.first, window.offset + b - 1 - window.first


def best_answers(
    windows: Sequence[Window],
    start_logits: Sequence[np.ndarray],
    stop_logits: Sequence[np.ndarray],
    raw: str,
    context: Encoded,
    max_answer_tokens: int = MAX_ANSWER_TOKENS,
    allow_none: bool = False,
    align_to_words: bool = False,
    top_k: int = 1,
) -> list[Answer]:
    """The top_k answers over all windows, best first; the empty one among them only if `allow_none`.

    start_logits, stop_logits: (T,) each a window. A span scores p(start) p(stop), each a softmax over the context tokens
    of its window and [CLS]; spans of one text, but for case, score their sum; none scores the least p([CLS]) p([CLS]) of
    any window. align_to_words: a span grows to whole words of the pre-tokenizer, for languages that write spaces (the
    pipeline's default; it then adds up the best 2 top_k + 10 spans of each window, else top_k)."""
    found: dict[str, Answer] = {}
    none_score = np.inf
    for window, start_row, stop_row in zip(windows, start_logits, stop_logits, strict=True):
        start, start_none = _probabilities(window, start_row)
        stop, stop_none = _probabilities(window, stop_row)
        none_score = min(none_score, float(start_none * stop_none))
        num_spans = 2 * top_k + 10 if align_to_words else top_k
        for a, b, score in _best_spans(start, stop, max_answer_tokens, num_spans):
            if align_to_words:
                a, b = _whole_words(window, context, a, b)
            at, end = span_of_tokens(raw, context, window.first + a, window.first + b)
            known = found.get(raw[at:end].lower(), Answer(raw[at:end], at, end, 0.0))
            found[raw[at:end].lower()] = replace(known, score=known.score + score)
    answers = list(found.values())
    if allow_none:
        answers.append(Answer("", 0, 0, none_score))
    return sorted(answers, key=lambda answer: -answer.score)[:top_k]


def _probabilities(window: Window, logits: np.ndarray) -> tuple[np.ndarray, float]:
    """Those of the context's tokens, and of [CLS]."""
    context = slice(window.offset, window.offset + window.num_tokens)
    kept = np.concatenate([logits[:1], logits[context]])
    kept = np.exp(kept - kept.max())
    kept /= kept.sum()
    return kept[1:], float(kept[0])


def _best_spans(start: np.ndarray, stop: np.ndarray, max_tokens: int, number: int) -> list[tuple[int, int, float]]:
    """[a, b) and score of the best spans of at most max_tokens, best first."""
    scores = np.tril(np.triu(np.outer(start, stop)), max_tokens - 1).ravel()
    if not len(scores):
        return []
    best = [scores.argmax()] if number == 1 else np.argsort(-scores, kind="stable")[:number]
    return [(int(i) // len(stop), int(i) % len(stop) + 1, float(scores[i])) for i in best if scores[i] > 0]


def _whole_words(window: Window, context: Encoded, a: int, b: int) -> tuple[int, int]:
    """[a, b) with the tokens of this window that belong to its first and its last word."""
    assert context.words is not None, "the context was encoded without words"
    words = context.words[window.first : window.first + window.num_tokens]
    while a > 0 and words[a - 1] == words[a]:
        a -= 1
    while b < len(words) and words[b] == words[b - 1]:
        b += 1
    return a, b
