"""Named model sizes.

bert-*: Turc et al. 2019 (https://arxiv.org/abs/1908.08962) and Devlin et al. 2018; -tiny to -medium are the former's.
gpt2*: Radford et al. 2019, as in the config.json of their checkpoints; gpt2-tiny and gpt2-mini are ours, for demos.
gpt3-*: table 2.1 of Brown et al. 2020 (https://arxiv.org/abs/2005.14165), with GPT-2's code and vocabulary. The table gives
    gpt3-xl 24 heads of 128 for a width of 2048, which do not go together; 16 of 128, which do, are taken here. It gives
    gpt3-2.7b 32 heads of 80, gpt3-6.7b 32 of 128 and gpt3-13b a width of 5140; 5120 = 40 x 128 is taken here.
gpt-j-6b: Wang and Komatsuzaki 2021; gpt-neox-20b: Black et al. 2022 (https://arxiv.org/abs/2204.06745), their config.json.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Size:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    family: str = "bert"  # transformers' model_type
    vocabulary_size: int = 30_522  # when there is no vocabulary yet
    more: dict[str, Any] = field(default_factory=dict)  # further keys of the config


def _gpt2(hidden_size: int, num_hidden_layers: int, num_attention_heads: int) -> Size:
    return Size(hidden_size, num_hidden_layers, num_attention_heads, "gpt2", 50_257)


PRESETS = {
    "bert-tiny": Size(128, 2, 2),
    "bert-mini": Size(256, 4, 4),
    "bert-small": Size(512, 4, 8),
    "bert-medium": Size(512, 8, 8),
    "bert-base": Size(768, 12, 12),
    "bert-large": Size(1024, 24, 16),
    "gpt2-tiny": _gpt2(128, 2, 2),
    "gpt2-mini": _gpt2(256, 4, 4),
    "gpt2": _gpt2(768, 12, 12),
    "gpt2-medium": _gpt2(1024, 24, 16),
    "gpt2-large": _gpt2(1280, 36, 20),
    "gpt2-xl": _gpt2(1600, 48, 25),
    "gpt3-xl": _gpt2(2048, 24, 16),
    "gpt3-2.7b": _gpt2(2560, 32, 32),
    "gpt3-6.7b": _gpt2(4096, 32, 32),
    "gpt3-13b": _gpt2(5120, 40, 40),
    "gpt-j-6b": Size(4096, 28, 16, "gptj", 50_400, {"rotary_dim": 64}),
    "gpt-neox-20b": Size(
        6144,
        44,
        64,
        "gpt_neox",
        50_432,
        {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
            "hidden_act": "gelu_fast",
            "use_parallel_residual": True,
        },
    ),
}
