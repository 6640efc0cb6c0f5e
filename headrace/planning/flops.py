"""Floating-point operations of a training step, counted from the shapes that are really computed."""

from transformers import BertConfig


def bert_training_flops(
    config: BertConfig, num_tokens: int, sum_squared_lengths: int, num_targets: int, num_pairs: int
) -> float:
    """Forward and backward (three times forward) of BERT with heads on predicted positions and pairs only.

    num_tokens: tokens without padding; sum_squared_lengths: over examples, what attention needs. Padding is not counted
    as work. Matrix products only: 6 FLOPs a weight and token, attention 12 L H s^2 an example of s tokens.
    """
    hidden, layers, wide = config.hidden_size, config.num_hidden_layers, config.intermediate_size
    encoder_weights = layers * (4 * hidden * hidden + 2 * hidden * wide)
    return (
        6.0 * encoder_weights * num_tokens
        + 12.0 * layers * hidden * sum_squared_lengths
        + 6.0 * (hidden * hidden + hidden * config.vocab_size) * num_targets
        + 6.0 * (hidden * hidden + 2 * hidden) * num_pairs
    )
