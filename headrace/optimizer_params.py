"""The section training.optimizer: a kind of optimizer, and the keys that mean something to it."""

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from headrace.sections import BelowOne, Section

_ADAM_KEYS = ("betas", "eps", "bias_correction", "max_gradient_norm", "max_gradient_value")
# Kind -> its own keys besides weight_decay and no_decay, which all have, and weights in these formats, the default first.
_KEYS: dict[str, tuple[str, ...]] = {
    "adamw": _ADAM_KEYS,
    "adamw_8bit": _ADAM_KEYS,
    "adafactor": ("clip_threshold",),
    "sgd": ("momentum", "max_gradient_norm", "max_gradient_value"),
}
_WEIGHTS: dict[str, tuple[str, ...]] = {
    "adamw": ("fp32", "split_bf16"),
    "adamw_8bit": ("fp32",),
    "adafactor": ("bf16", "fp32"),
    "sgd": ("fp32",),
}


class OptimizerParams(Section):
    kind: Literal["adamw", "adamw_8bit", "adafactor", "sgd"] = "adamw"
    """adamw: torch's, bit for bit, 12 bytes a parameter; adamw_8bit: with moments rounded to 8 bits, 6 bytes; adafactor:
    second moments by row and column, on bf16 weights 2 bytes; sgd: torch's, 4 bytes, 8 with momentum."""
    weights: Literal["fp32", "split_bf16", "bf16"] = "fp32"
    """How weights are kept. fp32; split_bf16 (adamw): fp32 in two halves, of which the model computes with the first, a
    bfloat16 rounded to nearest, and updates change the whole, exactly; bf16 (adafactor, its default): rounded at random so
    that the mean is right, inexact."""
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.999)
    """Decay of the two moments a step; adamw and adamw_8bit."""
    eps: Annotated[float, Field(gt=0.0)] = 1e-6
    """Added to the root of the second moment; adamw and adamw_8bit."""
    momentum: BelowOne = 0.0
    """Share of the last update in the next; sgd."""
    clip_threshold: Annotated[float, Field(gt=0.0)] = 1.0
    """Largest root mean square of a parameter's update, before the learning rate; adafactor."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.01
    """Default for adafactor and sgd: 0."""
    no_decay: list[str] = ["bias", "LayerNorm"]
    """Parameters whose name contains one of these are not decayed; default for causal_lm: bias, norm, Norm, ln_."""
    bias_correction: bool = True
    """Adam's bias correction, which BERT's original optimizer lacks; adamw and adamw_8bit."""
    max_gradient_norm: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Gradients are scaled so that their global norm is at most this. null: no clipping; then segments on disk are updated
    in backward, each as soon as its gradient is whole, and no gradient is held. adafactor has none: it clips each
    parameter's update by itself."""
    max_gradient_value: Annotated[float, Field(gt=0.0)] | None = None
    """Each element of a gradient is cut to at most this, up and down; only with max_gradient_norm: null. adamw, adamw_8bit and
    sgd."""

    @model_validator(mode="before")
    @classmethod
    def _keys_and_defaults_of_the_kind(cls, given: Any) -> Any:
        kind = given.get("kind", cls.model_fields["kind"].default) if isinstance(given, dict) else None
        if not isinstance(kind, str) or kind not in _KEYS:
            return given  # told by the field
        if kind == "adafactor" and given.get("max_gradient_norm") is not None:
            raise ValueError(
                f"training.optimizer.max_gradient_norm = {given['max_gradient_norm']!r} does not fit "
                f"training.optimizer.kind = 'adafactor', which clips each parameter's update by itself (clip_threshold) and "
                f"waits for no gradient norm; leave it out, or set it to null"
            )
        for name in sorted({key for keys in _KEYS.values() for key in keys} - {*_KEYS[kind], "max_gradient_norm"}):
            if name in given:
                fitting = [other for other, keys in _KEYS.items() if name in keys]
                raise ValueError(
                    f"training.optimizer.{name} = {given[name]!r} has no meaning for training.optimizer.kind = {kind!r}; "
                    f"leave it out (it belongs to {' and '.join(fitting)})"
                )
        weights = given.get("weights", _WEIGHTS[kind][0])
        if weights in [each for formats in _WEIGHTS.values() for each in formats if each not in _WEIGHTS[kind]]:
            raise ValueError(
                f"training.optimizer.weights = {weights!r} does not fit training.optimizer.kind = {kind!r}; use "
                f"{' or '.join(_WEIGHTS[kind])}"
            )
        defaults: dict[str, Any] = {"weights": weights}
        if kind in ("adafactor", "sgd"):
            defaults["weight_decay"] = 0.0
        if kind == "adafactor":
            defaults["max_gradient_norm"] = None
        return {**defaults, **given}

    @model_validator(mode="after")
    def _clipped_once(self) -> "OptimizerParams":
        if self.max_gradient_value is not None and self.max_gradient_norm is not None:
            raise ValueError(
                f"training.optimizer.max_gradient_value = {self.max_gradient_value:g} and training.optimizer.max_gradient_norm = "
                f"{self.max_gradient_norm:g} exclude each other; set the one that is not meant to null"
            )
        return self

    @model_serializer(mode="wrap")
    def _keys_that_mean_something(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """What is written down is what may be read again."""
        kept = {"kind", "weights", "weight_decay", "no_decay", *_KEYS[self.kind]}
        return {name: value for name, value in plain(self).items() if name in kept}

    @property
    def eager(self) -> bool:
        """Whether segments on disk are updated in backward: nothing waits for a global norm."""
        return self.max_gradient_norm is None
