"""Named model sizes. BERT's are from Turc et al. 2019 (https://arxiv.org/abs/1908.08962) and Devlin et al. 2018."""

from dataclasses import dataclass


@dataclass(frozen=True)
class BertSize:
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int


BERT_PRESETS = {
    "bert-tiny": BertSize(128, 2, 2),
    "bert-mini": BertSize(256, 4, 4),
    "bert-small": BertSize(512, 4, 8),
    "bert-medium": BertSize(512, 8, 8),
    "bert-base": BertSize(768, 12, 12),
    "bert-large": BertSize(1024, 24, 16),
}
