"""What the params of a run on labelled rows leave open until the rows are known: labels, steps, learning rate.

params + labels, number of features, width of the model  ->  params that say all of it
"""

from math import ceil

from headrace.labelled.order import steps_of
from headrace.params import Params, validate_params

WIDTH_OF_BASE = 768
MOST_TIMES_BASE = 6.0
TIMES_FOR_LORA = (
    10.0  # Schulman et al. 2025, "LoRA Without Regret": the best rate is about ten times that of all weights
)


def with_labels(params: Params, labels: list[str] | None) -> Params:
    """The same params with these data.labels."""
    tree = params.model_dump(mode="json")
    tree["data"]["labels"] = labels
    return validate_params(tree)


def with_steps(params: Params, num_features: int, peak: float, hidden_size: int, evaluates: bool) -> Params:
    """The same params with steps for epochs, and with a learning rate and evaluations once an epoch where none are given.

    peak: of the learning rate for a model of BERT-base's width; narrower ones take more, in inverse proportion, and adapters
    more than the weights they are beside."""
    tree = params.model_dump(mode="json")
    training = tree["training"]
    for phase in training["phases"]:
        if "steps" not in phase:
            phase["steps"] = steps_of(phase.pop("epochs"), num_features, phase["batch_size"])
    if evaluates and tree["evaluation"]["every"] is None:
        tree["evaluation"]["every"] = ceil(num_features / training["phases"][0]["batch_size"])
    total = sum(phase["steps"] for phase in training["phases"])
    if training["learning_rate"] is None and not all(phase["learning_rate"] for phase in training["phases"]):
        factor = min(max(WIDTH_OF_BASE / hidden_size, 1.0), MOST_TIMES_BASE)
        factor *= TIMES_FOR_LORA if training["lora"] is not None else 1.0
        top = training["peak_learning_rate"] or peak * factor
        training["learning_rate"] = _up_and_down(top, total, round(params.training.warmup * total))
    return validate_params(tree)


def _up_and_down(peak: float, steps: int, warmup_steps: int) -> list[dict[str, object]]:
    """From 0 to the peak in warmup_steps, and to 0 at the last step, in straight lines."""
    rise = {"kind": "linear", "start": 0.0, "end": peak, "steps": warmup_steps}
    fall = {"kind": "linear", "start": peak, "end": 0.0, "steps": max(1, steps - warmup_steps)}
    return [rise, fall] if warmup_steps else [fall]
