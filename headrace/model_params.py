"""The section model: a preset, with keys that override it, or a config of transformers."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from headrace.sections import BelowOne, PositiveInt, Section

# What a preset's name begins with -> the values of keys that are not given: BERT's, GPT-2's, and GPT-3's, which GPT-J and
# GPT-NeoX took over (none of the three papers uses dropout).
_GPT3_DEFAULTS = {
    "max_position_embeddings": 2048,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "layer_norm_eps": 1e-5,
    "initializer_range": 0.02,
}
MODEL_DEFAULTS: dict[str, dict[str, float]] = {
    "bert": {
        "max_position_embeddings": 512,
        "hidden_dropout": 0.1,
        "attention_dropout": 0.1,
        "layer_norm_eps": 1e-12,
        "initializer_range": 0.02,
    },
    "gpt2": {**_GPT3_DEFAULTS, "max_position_embeddings": 1024, "hidden_dropout": 0.1, "attention_dropout": 0.1},
    "gpt": _GPT3_DEFAULTS,
}


class DistributionParams(Section):
    kind: Literal["normal", "truncated_normal", "uniform", "constant"] = "normal"
    mean: float = 0.0
    """Of a normal distribution; the value itself of constant."""
    std: Annotated[float, Field(ge=0.0)] | None = None
    """Standard deviation before cutting; normal and truncated_normal, in place of scale."""
    scale: Annotated[float, Field(gt=0.0)] | None = None
    """Variance times the fan: each matrix has the standard deviation sqrt(scale / fan), after cutting (He et al. 2015)."""
    fan: Literal["in", "out", "average"] = "in"
    """With scale: a matrix's inputs, outputs, or their mean. An embedding's inputs are its rows."""
    low: float | None = None
    """uniform: the least value; truncated_normal: cut there, default mean - 2 std."""
    high: float | None = None
    """uniform: the greatest value; truncated_normal: cut there, default mean + 2 std."""

    @model_validator(mode="after")
    def _whole(self) -> "DistributionParams":
        bounds = (self.low is None) + (self.high is None)
        if self.kind == "uniform" and (bounds == 2) == (self.scale is None):
            raise ValueError("a uniform distribution should have low and high, or scale")
        if self.kind in ("normal", "truncated_normal") and (self.std is None) == (self.scale is None):
            raise ValueError(f"a {self.kind} distribution should have either std or scale")
        if bounds == 1 or (self.low is not None and self.high is not None and self.low >= self.high):
            raise ValueError(f"low = {self.low} and high = {self.high} should be given together, low below high")
        return self


class InitialParams(Section):
    embeddings: DistributionParams | None = None
    """Token, position and segment tables."""
    matrices: DistributionParams | None = None
    """All other matrices: projections, feed-forward layers, heads."""
    outputs: DistributionParams | None = None
    """The last matrix of each attention and feed-forward half, which adds to the residual; default: as matrices."""


class ModelParams(Section):
    preset: (
        Literal[
            "bert-tiny",
            "bert-mini",
            "bert-small",
            "bert-medium",
            "bert-base",
            "bert-large",
            "gpt2-tiny",
            "gpt2-mini",
            "gpt2",
            "gpt2-medium",
            "gpt2-large",
            "gpt2-xl",
            "gpt3-xl",
            "gpt3-2.7b",
            "gpt3-6.7b",
            "gpt3-13b",
            "gpt-j-6b",
            "gpt-neox-20b",
        ]
        | None
    ) = "bert-mini"
    """A named size; each key below overrides one of its values. bert-* go with the task masked_lm, gpt* with causal_lm, both
    with tasks on `data`."""
    init_from: Path | None = None
    """Instead of a preset: a run, a checkpoint or any Hugging Face folder, whose model, weights and tokenizer this run
    starts from. What it has no weights for begins anew, and is named. Beside it only the dropouts may be given."""
    config: dict[str, Any] | None = None
    """Instead of a preset and the keys below: any model of transformers, by the keys of its config.json, such as
    `{model_type: llama, hidden_size: 512, ...}`. The vocabulary's size and special tokens are filled in."""
    hidden_size: PositiveInt | None = None
    """Width of the model; a multiple of num_attention_heads."""
    num_hidden_layers: PositiveInt | None = None
    num_attention_heads: PositiveInt | None = None
    intermediate_size: PositiveInt | None = None
    """Width of the feed-forward layers; 4 x hidden_size when hidden_size is given and this is not."""
    max_position_embeddings: PositiveInt | None = None
    """The longest sequence the model can read; default: 512 for bert-*, 1024 for gpt2*, else 2048."""
    hidden_dropout: BelowOne | None = None
    """After the embeddings and each half of a layer; default: 0.1 for bert-* and gpt2*, else 0."""
    attention_dropout: BelowOne | None = None
    """Of attention weights; default: as hidden_dropout's."""
    layer_norm_eps: Annotated[float, Field(gt=0.0)] | None = None
    """Default: 1e-12 for bert-*, else 1e-5."""
    initializer_range: Annotated[float, Field(gt=0.0)] | None = None
    """Standard deviation of the initial weights; default: 0.02."""
    initial: InitialParams | None = None
    """Distributions of the initial weights by their place in the model; default: by the model's own rule, biases 0 and norms 1
    in either case. May stand beside config."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_the_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        filled = {key: value for key, value in given.items() if value is not None}
        if "config" in filled or "init_from" in filled:
            return {"preset": None, **filled}
        preset = str(filled.get("preset", cls.model_fields["preset"].default))
        family = next((name for name in MODEL_DEFAULTS if preset.startswith(name)), None)
        return {**MODEL_DEFAULTS[family], **filled} if family else given

    @model_validator(mode="after")
    def _config_or_preset(self) -> "ModelParams":
        given = [name for name in type(self).model_fields if name != "initial" and getattr(self, name) is not None]
        if self.init_from is not None:
            beside = [name for name in given if name not in ("init_from", "hidden_dropout", "attention_dropout")]
            if beside:
                raise ValueError(
                    f"model.{beside[0]} and model.init_from exclude each other: the folder's config.json says what the "
                    f"model is; leave one of them out"
                )
            return self
        if self.config is None:
            return self
        if beside := [name for name in given if name != "config"]:
            raise ValueError(f"model.{beside[0]} and model.config exclude each other; write it inside model.config")
        if not isinstance(self.config.get("model_type"), str):
            raise ValueError("model.config.model_type is required and not given: gpt2, llama, ...")
        return self

    @property
    def name(self) -> str:
        """What was chosen, for people."""
        if self.init_from is not None:
            return str(self.init_from)
        return str(self.config["model_type"] if self.config is not None else self.preset)
