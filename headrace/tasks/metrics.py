"""Libraries that compute metrics, imported where they are used."""

from collections.abc import Callable
from typing import Any

from headrace.errors import MissingExtraError

ROUGE = ("rouge1", "rouge2", "rougeL")


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


def rouge_f1(language: str) -> Callable[[str, str], dict[str, float]]:
    """(reference, summary) -> F1 of each of ROUGE by rouge-score; its words are characters without white space for Japanese,
    its own (letters and digits, lower case, not stemmed) else. Raises MissingExtraError."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise MissingExtraError("Judging summaries", "rouge-score", "tasks") from None
    in_characters = language == "ja"
    scorer = RougeScorer(list(ROUGE), tokenizer=_Words(list) if in_characters else None)

    def score(reference: str, summary: str) -> dict[str, float]:
        if in_characters:
            reference, summary = "".join(reference.split()), "".join(summary.split())
        return {name: found.fmeasure for name, found in scorer.score(reference, summary).items()}

    return score


class _Words:
    """What rouge-score asks of a tokenizer."""

    def __init__(self, tokenize: Callable[[str], list[str]]):
        self.tokenize = tokenize
