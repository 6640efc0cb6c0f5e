"""The optimizer section as training.optimizer, training.loss_scale and the schedule's clock."""

from typing import Any

from headrace.errors import UserError
from headrace.modelzoo.params.draft import Draft
from headrace.modelzoo.params.keys import nearest, shown
from headrace.modelzoo.params.model import second_generation
from headrace.modelzoo.params.optimizer_kinds import kind_of
from headrace.modelzoo.params.parts import Parts
from headrace.modelzoo.params.schedules import put_learning_rate

# What a word of exclude_from_weight_decay is among our parameters' names, for BERT and for the GPTs. The tool's default is
# biases and norms in every generation, whatever they are called there.
_NORMS = {"bert": ("LayerNorm",), "gpt": ("norm", "Norm", "ln_")}
_WORDS: dict[str, dict[str, tuple[str, ...]]] = {
    family: {
        **dict.fromkeys(("bias", "Bias"), ("bias",)),
        **dict.fromkeys(
            ("LayerNorm", "layer_norm", "LayerNorm.weight", "LayerNorm.bias", "layernorm", "norm", "ln"), norms
        ),
        **dict.fromkeys(("BatchNorm", "BatchNorm.weight", "BatchNorm.bias"), ()),
        **dict.fromkeys(
            ("embedding", "embeddings"), ("embeddings",) if family == "bert" else ("wte", "wpe", "embed_in")
        ),
    }
    for family, norms in _NORMS.items()
}


def put_optimizer(draft: Draft, parts: Parts) -> None:
    """training.optimizer, learning_rate, schedule_clock and loss_scale. Raises UserError for what is not available."""
    optimizer = parts.optimizer
    if not optimizer.has("optimizer_type"):
        raise UserError(f"{optimizer.path}.optimizer: is required and not given (AdamW, Adam, SGD or Adafactor)")
    written = str(optimizer["optimizer_type"])
    at = optimizer.at("optimizer_type")
    kind = kind_of(written, at)

    def put(name: str, value: Any, origin: str) -> None:
        draft.put(f"training.optimizer.{name}", value, origin)

    put("kind", kind, at)
    if kind == "adafactor":
        put("weights", "fp32", "the tool keeps fp32 weights")
    if kind == "adamw":
        _put_adam(put, parts, plain=written.lower() == "adam")
    elif kind == "sgd":
        default = 0.9 if parts.kind.tensorflow and written.lower() == "momentum" else 0.0
        used = not parts.kind.tensorflow or written.lower() == "momentum"
        value = optimizer["momentum"] if used and optimizer.has("momentum") else default
        put("momentum", value, optimizer.where("momentum"))
        if written.lower() == "momentum":
            parts.notes.add(f"{at}: momentum is torch's SGD, with the learning rate outside the momentum, as in the tool up to "
                            f"changes of the rate")  # fmt: skip
    else:
        put("clip_threshold", optimizer.get("clip_threshold", 1.0), optimizer.where("clip_threshold"))
    _put_weight_decay(put, parts, written.lower())
    _put_clipping(put, parts, kind)
    rate = optimizer.given.get("learning_rate")
    if rate is None:
        raise UserError(f"{optimizer.path}.learning_rate: is required and not given")
    optimizer.has("learning_rate")
    put_learning_rate(draft, rate, parts.kind.tensorflow, parts.notes)
    _put_clock(draft, parts)
    _put_loss_scale(draft, parts)


def _put_adam(put: Any, parts: Parts, plain: bool) -> None:
    optimizer, tensorflow = parts.optimizer, parts.kind.tensorflow
    betas = optimizer.get("betas")
    if betas is not None:
        if len(betas) != 2:
            raise UserError(f"{optimizer.at('betas')} = {shown(betas)}: should be two numbers")
        put("betas", betas, optimizer.at("betas"))
    else:
        origin = ", ".join(optimizer.where(name) for name in ("beta1", "beta2"))
        put("betas", [optimizer["beta1"], optimizer["beta2"]], origin)
    name = "epsilon" if tensorflow else "eps"
    eps = optimizer[name]
    if eps is None:
        eps = 1e-5 if parts.model["mixed_precision"] else 1e-8
    put("eps", eps, optimizer.where(name))
    corrected = "use_bias_correction" if tensorflow else "correct_bias"
    value = optimizer[corrected]
    if plain:
        if value is False:
            parts.notes.no_effect(
                optimizer.at(corrected), "adam always corrects the bias of its moments, as in the tool"
            )
        put("bias_correction", True, optimizer.at("optimizer_type"))
    else:
        if value is None:
            value = second_generation(parts)
        put("bias_correction", value, optimizer.where(corrected))
    if value or plain:
        parts.notes.add(
            f"{optimizer.at(name)} = {eps:g}: torch adds it after the correction of the second moment, the tool before; in the "
            f"first steps ours weighs less, later they are the same"
        )


def _put_weight_decay(put: Any, parts: Parts, written: str) -> None:
    optimizer = parts.optimizer
    name = "weight_decay_rate" if parts.kind.tensorflow else "weight_decay"
    decay, origin = optimizer[name], optimizer.where(name)
    if parts.kind.tensorflow and written != "adamw" and decay:
        parts.notes.no_effect(optimizer.at(name), f"TensorFlow's {written} has no weight decay in the tool; adamw has")
        decay, origin = 0.0, optimizer.at("optimizer_type")
    elif written == "adam" and decay:
        raise UserError(
            f"{optimizer.at(name)} = {decay:g}: Adam adds it to the gradient (L2), which is not available; use AdamW, which decays "
            f"the weights themselves, or set it to 0"
        )
    put("weight_decay", decay, origin)
    family = "bert" if parts.kind.family == "bert" else "gpt"
    words = ["bias", *_NORMS[family]]
    if optimizer.has("exclude_from_weight_decay"):
        at, given = optimizer.at("exclude_from_weight_decay"), optimizer["exclude_from_weight_decay"]
        known, words = _WORDS[family], []
        for each in given if isinstance(given, list) else [given]:
            if each not in known:
                raise UserError(f"{at} = {shown(each)}: no such kind of parameter here{nearest(str(each), known)} "
                                f"(there are {', '.join(known)})")  # fmt: skip
            words += [word for word in known[each] if word not in words]
    put("no_decay", words, optimizer.where("exclude_from_weight_decay"))


def _put_clipping(put: Any, parts: Parts, kind: str) -> None:
    optimizer = parts.optimizer
    norm, value = optimizer["max_gradient_norm"], optimizer["max_gradient_value"]
    for name, each in (("max_gradient_norm", norm), ("max_gradient_value", value)):
        if each is not None and each < 0:
            raise UserError(f"{optimizer.at(name)} = {each:g}: should be 0 (no clipping) or more")
    if norm and value:
        raise UserError(
            f"{optimizer.at('max_gradient_norm')} = {norm:g} and {optimizer.at('max_gradient_value')} = {value:g} exclude each "
            f"other; leave one out"
        )
    if kind == "adafactor":
        if norm or value:
            at = optimizer.at("max_gradient_norm" if norm else "max_gradient_value")
            raise UserError(
                f"{at} = {norm or value:g}: adafactor clips each update by itself (clip_threshold); leave it out"
            )
        return
    put("max_gradient_norm", norm or None, optimizer.where("max_gradient_norm"))
    if value:
        put("max_gradient_value", value, optimizer.at("max_gradient_value"))


def _put_clock(draft: Draft, parts: Parts) -> None:
    optimizer = parts.optimizer
    flag = optimizer.get("disable_lr_steps_reset")
    origin = optimizer.where("disable_lr_steps_reset")
    if flag is None:
        # Release_1.8.0 transformers/pytorch/bert/utils.py; TensorFlow and all other models: False.
        flag = parts.kind.style == "pytorch" and parts.kind.family == "bert" and parts.kind.job == "pretraining"
        flag = flag and not second_generation(parts)
    if flag:
        parts.notes.add(
            f"{origin}: each schedule counts the run's steps, not its own (training.schedule_clock: global_step), so the rate "
            f"jumps where a decay follows a warm-up"
        )
    draft.put("training.schedule_clock", "global_step" if flag else "in_sequence", origin)


def _put_loss_scale(draft: Draft, parts: Parts) -> None:
    optimizer, notes = parts.optimizer, parts.notes
    factor, at = optimizer["loss_scaling_factor"], optimizer.where("loss_scaling_factor")

    def put(name: str, value: Any, origin: str) -> None:
        draft.put(f"training.loss_scale.{name}", value, origin)

    if isinstance(factor, str) and factor not in ("dynamic", "tf_dynamic"):
        raise UserError(f"{at} = {factor!r}: should be a number, dynamic or tf_dynamic")
    put("dynamic", isinstance(factor, str), at)
    names = {
        "initial": "initial_loss_scale",
        "growth_steps": "steps_per_increase",
        "min": "min_loss_scale",
        "max": "max_loss_scale",
    }
    if not isinstance(factor, str):
        if factor <= 0:
            raise UserError(f"{at} = {factor:g}: should be more than 0")
        put("initial", factor, at)
        for name in names.values():
            if optimizer.has(name):
                notes.no_effect(optimizer.at(name), "the loss scale is a fixed number")
        return
    values = {name: optimizer[theirs] for name, theirs in names.items()}
    origins = {name: optimizer.where(theirs) for name, theirs in names.items()}
    if values["max"] < values["initial"]:
        if optimizer.has("max_loss_scale") and optimizer.has("initial_loss_scale"):
            raise UserError(
                f"{origins['initial']} = {values['initial']:g} is over {origins['max']} = {values['max']:g}"
            )
        smaller = "max" if optimizer.has("initial_loss_scale") else "initial"
        values[smaller] = values["initial" if smaller == "max" else "max"]
        origins[smaller] = origins["initial" if smaller == "max" else "max"]
    for name, value in values.items():
        put(name, value, origins[name])
    notes.add(
        f"{at} = {factor}: scales the loss where device.precision is fp16 (add device.precision=fp16); bf16 and fp32 need none"
    )
