"""Libraries that compute metrics, imported where they are used."""

from collections.abc import Callable, Sequence
from typing import Any

from headrace.errors import MissingExtraError


def metrics_of_scikit_learn() -> Any:
    """`sklearn.metrics`; raises MissingExtraError."""
    try:
        from sklearn import metrics
    except ImportError:
        raise MissingExtraError("Judging predictions", "scikit-learn", "tasks") from None
    return metrics


def metrics_of_seqeval() -> Any:
    """`seqeval.metrics`; raises MissingExtraError."""
    try:
        from seqeval import metrics
    except ImportError:
        raise MissingExtraError("Judging entities", "seqeval", "tasks") from None
    return metrics


def rouge_scorer(names: Sequence[str], tokenize: Callable[[str], list[str]] | None = None) -> Any:
    """A `RougeScorer` of rouge-score, with words of one's own; raises MissingExtraError."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtraError("Judging summaries", "rouge-score", "tasks") from None
    return RougeScorer(list(names), tokenizer=_Words(tokenize) if tokenize is not None else None)


class _Words:
    """What rouge-score asks of a tokenizer."""

    def __init__(self, tokenize: Callable[[str], list[str]]):
        self.tokenize = tokenize
