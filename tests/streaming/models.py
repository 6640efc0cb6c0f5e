"""Small models of every kind, with random weights that depend on the seed alone."""

import torch
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForPreTraining,
    GPT2Config,
    GPT2LMHeadModel,
    GPTJConfig,
    GPTJForCausalLM,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

VOCABULARY = 311
FAMILIES = ("bert", "gpt2", "gptj", "gpt_neox", "llama", "t5", "hand_written")
TIED = {"bert", "gpt2", "t5"}


class Block(nn.Module):
    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(dropout)
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.gain = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor, *, scale: Tensor) -> tuple[Tensor, Tensor]:
        y = self.dropout(self.outer(torch.tanh(self.inner(self.norm(x)))))
        return x + self.gain * scale * y, y.detach().mean()


class HandWritten(nn.Module):
    """Not transformers': a scalar weight, keyword tensors, two outputs, glue with dropout between blocks."""

    def __init__(self, dropout: float):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 40)
        self.layers = nn.ModuleList([Block(40, dropout) for _ in range(3)])
        self.between = nn.Dropout(dropout)
        self.out = nn.Linear(40, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.layers:
            x, mean = layer(x, scale=torch.full((), 1.5) + mean_of(x))
            x = self.between(x) + mean
        return nn.functional.cross_entropy(self.out(x).flatten(0, 1), labels.flatten())


def mean_of(x: Tensor) -> Tensor:
    return x.mean().tanh()


def make(family: str, dropout: float, seed: int = 0) -> nn.Module:
    """family: one of FAMILIES, or with "_lora" behind it the same with a LoRA adapter that has done some work."""
    if family.endswith("_lora"):
        return with_lora(make(family.removesuffix("_lora"), dropout, seed), dropout)
    torch.manual_seed(seed)
    if family == "hand_written":
        return HandWritten(dropout)
    model: PreTrainedModel
    if family == "bert":
        model = BertForPreTraining(
            BertConfig(
                vocab_size=VOCABULARY,
                hidden_size=48,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=96,
                hidden_dropout_prob=dropout,
                attention_probs_dropout_prob=dropout,
            )
        )
    elif family == "gpt2":
        model = GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY,
                n_embd=48,
                n_layer=3,
                n_head=2,
                n_positions=64,
                resid_pdrop=dropout,
                embd_pdrop=dropout,
                attn_pdrop=dropout,
                **TOKENS,
            )
        )
    elif family == "gptj":
        model = GPTJForCausalLM(
            GPTJConfig(
                vocab_size=VOCABULARY,
                n_embd=48,
                n_layer=3,
                n_head=2,
                rotary_dim=8,
                n_positions=64,
                resid_pdrop=dropout,
                embd_pdrop=dropout,
                attn_pdrop=dropout,
                **TOKENS,
            )
        )
    elif family == "gpt_neox":
        model = GPTNeoXForCausalLM(
            GPTNeoXConfig(
                vocab_size=VOCABULARY,
                hidden_size=48,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=96,
                hidden_dropout=dropout,
                attention_dropout=dropout,
            )
        )
    elif family == "llama":
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=VOCABULARY,
                hidden_size=48,
                num_hidden_layers=3,
                num_attention_heads=2,
                intermediate_size=96,
                attention_dropout=dropout,
            )
        )
    else:
        model = T5ForConditionalGeneration(
            T5Config(
                vocab_size=VOCABULARY,
                d_model=48,
                d_kv=24,
                d_ff=96,
                num_layers=2,
                num_heads=2,
                dropout_rate=dropout,
                decoder_start_token_id=0,
            )
        )
    model.config.use_cache = False
    return model


def with_lora(model: nn.Module, dropout: float = 0.0) -> nn.Module:
    import peft  # an extra

    bert = getattr(model.config, "model_type", "") == "bert"
    config = peft.LoraConfig(
        r=4,
        lora_alpha=8,
        lora_dropout=dropout,
        target_modules=["query", "value", "intermediate.dense"] if bert else ["c_attn", "c_fc"],
        modules_to_save=["cls.seq_relationship"] if bert else None,
        fan_in_fan_out=not bert,
        init_lora_weights=False,
    )
    return peft.inject_adapter_in_model(config, model)


TOKENS = {"bos_token_id": 0, "eos_token_id": 0}


def batch(family: str, seed: int, examples: int = 8, length: int = 12) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, VOCABULARY, (examples, length), generator=generator)
    made = {"input_ids": ids, "labels": torch.randint(1, VOCABULARY, (examples, length), generator=generator)}
    if family.startswith("bert"):
        made["next_sentence_label"] = torch.randint(0, 2, (examples,), generator=generator)
    return made
