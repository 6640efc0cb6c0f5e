"""Floating-point operations of a training step, counted from the shapes that are really computed."""

from transformers import BertConfig, PretrainedConfig

from headrace.text.batches import Batch


def training_flops(
    task: str, config: PretrainedConfig, block_weights: int, batch: Batch, frozen_weights: int = 0, frozen_head: int = 0
) -> float:
    """Of one optimizer step on the batch. block_weights: weights of the matrices inside the model's blocks. frozen_weights,
    frozen_head: how many of them, and of the output layer's, do not train: a gradient less, 2 FLOPs a weight and token."""
    left_out = 2.0 * (frozen_weights * batch.num_tokens + frozen_head * batch.num_targets)
    return _all_trained_flops(task, config, block_weights, batch) - left_out


def _all_trained_flops(task: str, config: PretrainedConfig, block_weights: int, batch: Batch) -> float:
    if task not in ("masked_lm", "causal_lm"):
        return encoder_training_flops(config, block_weights, batch.num_tokens, batch.sum_squared_lengths)
    if task == "masked_lm":
        assert isinstance(config, BertConfig)
        return bert_training_flops(
            config, batch.num_tokens, batch.sum_squared_lengths, batch.num_targets, batch.num_pairs
        )
    return causal_training_flops(config, block_weights, batch.num_tokens, batch.sum_squared_lengths, batch.num_targets)


def encoder_training_flops(
    config: PretrainedConfig, block_weights: int, num_tokens: int, sum_squared_lengths: int
) -> float:
    """Forward and backward of a model with a small head, which is left out."""
    return 6.0 * block_weights * num_tokens + 12.0 * config.num_hidden_layers * config.hidden_size * sum_squared_lengths


def causal_training_flops(
    config: PretrainedConfig, block_weights: int, num_tokens: int, sum_squared_lengths: int, num_targets: int
) -> float:
    """Forward and backward of a decoder with its head on predicting positions. Attention is half of BERT's: no position
    sees those after it. A head's second forward (`headrace.tasks.causal_lm`) is not counted as work."""
    return (
        6.0 * block_weights * num_tokens
        + 6.0 * config.num_hidden_layers * config.hidden_size * sum_squared_lengths
        + 6.0 * config.hidden_size * config.vocab_size * num_targets
    )


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
