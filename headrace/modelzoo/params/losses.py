"""What a batch's summed losses are divided by and weighed with, of training and of evaluation, in each generation."""

from dataclasses import replace
from typing import NamedTuple

from headrace.modelzoo.params.draft import Draft
from headrace.modelzoo.params.inputs import InputFacts
from headrace.modelzoo.params.keys import Taken
from headrace.modelzoo.params.model import second_generation
from headrace.modelzoo.params.parts import Parts


def put_causal_loss(draft: Draft, parts: Parts) -> None:
    """task.loss_per and loss_weight of a GPT."""
    model, notes = parts.model, parts.notes
    per, where = ("example" if model["loss_scaling"] == "batch_size" else "target"), model.where("loss_scaling")
    weight, origin = model["loss_weight"], model.where("loss_weight")
    if parts.kind.tensorflow and parts.kind.family == "gptj":
        for name in ("loss_scaling", "loss_weight"):
            if model.has(name):
                notes.no_effect(
                    model.at(name), "the loss of TensorFlow's GPT-J is the mean over tokens, as in the tool"
                )
        per, weight = "target", 1.0
    elif per == "target" and weight != 1.0 and not parts.kind.tensorflow:
        if second_generation(parts):
            notes.no_effect(
                origin, f"with {where} = num_tokens the loss is the mean over tokens, as in the tool since 1.9"
            )
            weight = 1.0
        else:
            per, where = "example", origin
            notes.add(
                f"{origin} = {weight:g}: a weight means loss_scaling = batch_size, as in the tool up to 1.8: the sum over the "
                f"batch's tokens / examples x the weight"
            )
    draft.put("task.loss_per", per, where)
    draft.put("task.loss_weight", weight, origin)


class MaskedLoss(NamedTuple):
    """How the masked-LM losses of an input's batches are divided and weighed: task.loss_per and loss_weight."""

    per: str
    weight: float
    where: str
    weight_ignored: bool = False


def masked_loss(parts: Parts, source: Taken) -> MaskedLoss:
    """The tool asks the input section, so training and evaluation may differ."""
    model = parts.model
    weight = model["mlm_loss_weight"]
    if parts.kind.tensorflow:
        return MaskedLoss(
            "target" if source["scale_mlm_weights"] else "example", weight, source.where("scale_mlm_weights")
        )
    scaling, by_batch = model["mlm_loss_scaling"], source["dynamic_mlm_scale"]
    where = source.where("dynamic_mlm_scale") if by_batch or scaling is None else model.where("mlm_loss_scaling")
    if by_batch or scaling in ("num_masked", "precomputed_num_masked"):
        return MaskedLoss("target", 1.0, where, model.has("mlm_loss_weight"))
    return MaskedLoss("example", weight, where)


def with_own_loss(facts: InputFacts | None, parts: Parts, source: Taken) -> InputFacts | None:
    """The eval_input's own division of the loss, where it is not the training's."""
    if facts is None or parts.eval is None or parts.kind.family != "bert" or parts.kind.job != "pretraining":
        return facts
    trained, own = masked_loss(parts, source), masked_loss(parts, parts.eval)
    if (own.per, own.weight) == (trained.per, trained.weight):
        return facts
    divided = "masked tokens" if own.per == "target" else "examples"
    parts.notes.add(
        f"{own.where}: the loss of an evaluation is the sum over masked tokens / {divided} x {own.weight:g}, as in the tool; "
        f"training has another"
    )
    return replace(facts, loss_per=own.per, loss_weight=own.weight)
