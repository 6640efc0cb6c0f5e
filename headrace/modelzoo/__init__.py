"""The door for users of the Cerebras Model Zoo: their params, their records, their commands and their estimator."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.modelzoo.estimator import Estimator as CerebrasEstimator
    from headrace.modelzoo.estimator import Estimator as Estimator
    from headrace.modelzoo.estimator import EstimatorSpec as EstimatorSpec
    from headrace.modelzoo.estimator import ModeKeys as ModeKeys
    from headrace.modelzoo.estimator import RunConfig as CSRunConfig
    from headrace.modelzoo.estimator import RunConfig as RunConfig

_NAMES = {
    "CerebrasEstimator": "Estimator",
    "CSRunConfig": "RunConfig",
    **{name: name for name in ("Estimator", "EstimatorSpec", "ModeKeys", "RunConfig")},
}
__all__ = ["CSRunConfig", "CerebrasEstimator", "Estimator", "EstimatorSpec", "ModeKeys", "RunConfig"]


def __getattr__(name: str) -> Any:
    """Imported when they are used: whoever reads records need not wait for torch."""
    if name in _NAMES:
        from headrace.modelzoo import estimator

        return getattr(estimator, _NAMES[name])
    raise AttributeError(f"module 'headrace.modelzoo' has no attribute {name!r}")
