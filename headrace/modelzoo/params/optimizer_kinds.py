"""Which optimizers of the tool there are here, and why the others are refused."""

from headrace.errors import UserError
from headrace.modelzoo.params.keys import nearest

KINDS = {"adam": "adamw", "adamw": "adamw", "sgd": "sgd", "momentum": "sgd", "adafactor": "adafactor"}

_NO_RULE = "no update rule here computes it"
UNAVAILABLE = {
    "lamb": "it scales each matrix's update by norms of that matrix, and " + _NO_RULE,
    "lion": "it steps by the sign of its momentum, and " + _NO_RULE,
    **dict.fromkeys(("muon", "rmsprop", "rprop", "adagrad", "adadelta", "adamax", "asgd", "nadam", "radam"), _NO_RULE),
}


def kind_of(written: str, at: str) -> str:
    """training.optimizer.kind; raises UserError, with the reason where the tool has it and we do not."""
    name = written.lower()
    if name in UNAVAILABLE:
        raise UserError(
            f"{at} = {written!r}: not available: {UNAVAILABLE[name]}; use one of {', '.join(KINDS)}, with a learning rate for it"
        )
    if name not in KINDS:
        raise UserError(
            f"{at} = {written!r}: no such optimizer here{nearest(name, KINDS)} (there are {', '.join(KINDS)})"
        )
    return KINDS[name]
