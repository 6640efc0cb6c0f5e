"""Libraries that compute metrics, imported where they are used."""

from typing import Any

from headrace.errors import MissingExtraError


def metrics_of_scikit_learn() -> Any:
    """`sklearn.metrics`; raises MissingExtraError."""
    try:
        from sklearn import metrics
    except ImportError:
        raise MissingExtraError("Judging predictions", "scikit-learn", "tasks") from None
    return metrics
