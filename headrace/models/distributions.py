"""Initial weights from given distributions, by the place of a matrix in the model (model.initial).

Enters: a parameter's name, its module, and the distributions. Leaves: its values, decided by (seed, name) alone.
"""

import math

import torch
from torch import Tensor, nn

from headrace.errors import UserError
from headrace.model_params import DistributionParams, InitialParams
from headrace.text.random import key

# The last matrix of each half of a block, by model type: what is added to the residual.
OUTPUTS: dict[str, tuple[str, ...]] = {
    "bert": ("attention.output.dense.weight", "output.dense.weight"),
    "gpt2": ("c_proj.weight",),
    "gptj": ("out_proj.weight", "fc_out.weight"),
    "gpt_neox": ("attention.dense.weight", "dense_4h_to_h.weight"),
    "llama": ("o_proj.weight", "down_proj.weight"),
}
# Standard deviation of the standard normal distribution cut at two: what a scale is corrected by.
CUT_AT_TWO = 0.87962566103423978


def distribution_of(
    name: str, parameter: Tensor, module: nn.Module, model_type: str, initial: InitialParams
) -> DistributionParams | None:
    """The distribution of a parameter; None: it keeps the model's own rule. Raises UserError for outputs of a model whose
    outputs are not known."""
    if parameter.ndim < 2:
        return None
    if isinstance(module, nn.Embedding):
        return initial.embeddings
    if initial.outputs is not None:
        if model_type not in OUTPUTS:
            raise UserError(
                f"model.initial.outputs: which matrices these are is known for {', '.join(OUTPUTS)}, not for {model_type}; "
                f"leave it out"
            )
        if name.endswith(OUTPUTS[model_type]):
            return initial.outputs
    return initial.matrices


@torch.no_grad()
def draw(given: DistributionParams, name: str, shape: torch.Size, module: nn.Module, seed: int) -> Tensor:
    """Values of one matrix, fp32 on the CPU; an embedding's padding row is zero."""
    values = torch.empty(shape)
    chosen = torch.Generator().manual_seed(key("initial", seed, name))
    fan = _fan(given, shape, module)
    std = given.std if given.std is not None else math.sqrt((given.scale or 0.0) / fan)
    match given.kind:
        case "constant":
            values.fill_(given.mean)
        case "normal":
            values.normal_(given.mean, std, generator=chosen)
        case "uniform":
            reach = math.sqrt(3.0) * std
            low, high = (given.low, given.high) if given.low is not None else (-reach, reach)
            values.uniform_(low, high, generator=chosen)  # pyright: ignore[reportArgumentType]
        case "truncated_normal":
            std = std if given.std is not None else std / CUT_AT_TWO
            low = given.low if given.low is not None else given.mean - 2 * std
            high = given.high if given.high is not None else given.mean + 2 * std
            nn.init.trunc_normal_(values, given.mean, std, low, high, generator=chosen)
    padding = getattr(module, "padding_idx", None)
    if padding is not None:
        values[padding] = 0.0
    return values


def _fan(given: DistributionParams, shape: torch.Size, module: nn.Module) -> float:
    # nn.Linear keeps (outputs, inputs); GPT-2's Conv1D and an embedding (inputs, outputs).
    outputs, inputs = (shape[0], shape[1]) if isinstance(module, nn.Linear) else (shape[1], shape[0])
    return {"in": inputs, "out": outputs, "average": (inputs + outputs) / 2}[given.fan]
