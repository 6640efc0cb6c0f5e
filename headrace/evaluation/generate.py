"""A causal language model goes on with a text, one token at a time.

    folder -> model, with as many segments at hand as memory allows and the others fetched at each token
    prompt -> ids -> [next token, ...] -> text, as it comes

Weights that are fetched are read whole for every token, so only what fits is fast. The keys and values of earlier tokens
are kept either way. Arithmetic is fp32.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, DynamicCache, PreTrainedModel

from headrace.errors import UserError
from headrace.evaluation.folder_model import FolderModel, blank_model, least_bytes, open_model, place
from headrace.models.adapter_names import base_folder
from headrace.models.adapters import adapter_config
from headrace.models.segments import segments_of
from headrace.progress import say
from headrace.tasks import causal_lm
from headrace.text.vocabulary import open_vocabulary
from headrace.text.vocabulary.vocabulary import DESCRIPTION_FILE

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class Writer:
    """A model with what turns text into its tokens and back."""

    opened: FolderModel
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    end_ids: frozenset[int]

    def close(self) -> None:
        self.opened.close()

    def write(
        self, prompt: str, max_tokens: int, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> Iterator[str]:
        """The continuation, piece by piece; a character made of several tokens comes when it is whole."""
        ids = self.encode(prompt)
        if not ids:
            raise UserError("the prompt holds no token; give some text")
        said, found = "", []
        source = torch.Generator().manual_seed(seed)
        with self.opened.running() as model:
            for token in next_tokens(model, ids, max_tokens, self.end_ids, temperature, top_p, source):
                found.append(token)
                text = self.decode(ids + found)[len(self.decode(ids)) :]
                if not text.endswith("\ufffd") and len(text) > len(said):
                    yield text[len(said) :]
                    said = text
        text = self.decode(ids + found)[len(self.decode(ids)) :]
        if text[len(said) :]:
            yield text[len(said) :]


@dataclass(frozen=True)
class Continued:
    """A beginning and how the model went on."""

    prompt: str
    text: str


def open_writer(folder: Path, memory_bytes: int | None = None, num_tokens: int = 0) -> Writer:
    """The model and tokenizer of a Hugging Face folder. memory_bytes: most that weights, earlier tokens' keys and values
    (up to num_tokens) and what is being fetched may take; None = all weights are at hand. Raises UserError."""
    try:
        config: Any = AutoConfig.from_pretrained(base_folder(folder))
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a Hugging Face model folder: {str(error).splitlines()[0]}") from None
    causal_lm.check_config(config, config.model_type)
    encode, decode, end_id = _text_of(folder)
    device = torch.device("cpu")
    model = blank_model(lambda: causal_lm.new_model(config), device, adapter_config(folder))
    segments = segments_of(model)
    if memory_bytes is not None:
        kept_bytes = 8 * config.num_hidden_layers * config.hidden_size * num_tokens
        least = least_bytes(segments) + kept_bytes
        if memory_bytes < least:
            raise UserError(
                f"--memory = {memory_bytes:,} bytes is too little for this model: its largest part alone takes {least:,}"
            )
        memory_bytes -= kept_bytes
    placing = place(segments, memory_bytes)
    if placing.fetched_bytes:
        say(f"{placing.fetched_bytes / 2**30:.2f} GiB of weights do not fit and are read for every token")
    opened = open_model(folder, model, placing, device)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return Writer(opened, encode, decode, frozenset(i for i in (*ends, end_id) if i is not None))


def _text_of(folder: Path) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str], int | None]:
    if (folder / DESCRIPTION_FILE).is_file():  # ours: trained with the end of the text before in front
        vocabulary = open_vocabulary(folder)
        return (
            lambda text: [vocabulary.sep_id, *vocabulary.encode_batch([text])[0]],
            vocabulary.decode,
            vocabulary.sep_id,
        )
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise UserError(f"{folder}: holds no tokenizer ({', '.join(TOKENIZER_FILES)})")
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # transformers raises many types; whatever it is, the user must hear it in one line
        raise UserError(f"{folder}: its tokenizer cannot be read: {str(error).strip().splitlines()[0]}") from None
    return (
        lambda text: tokenizer(text)["input_ids"],
        lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
        tokenizer.eos_token_id,
    )


@torch.no_grad()
def next_tokens(
    model: PreTrainedModel,
    ids: Sequence[int],
    max_tokens: int,
    end_ids: frozenset[int],
    temperature: float,
    top_p: float,
    source: torch.Generator,
) -> Iterator[int]:
    """At most max_tokens tokens after ids; ends before an end token or where the model's positions end."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and len(ids) >= positions:
        raise UserError(f"the prompt has {len(ids)} tokens and the model reads at most {positions}; shorten it")
    cache = DynamicCache(config=model.config)
    seen, read = len(ids), torch.tensor([list(ids)])
    for _ in range(max_tokens):
        logits = model(input_ids=read, cache=cache, use_cache=True, logits_to_keep=1).logits[0, -1].float()
        token = choose(logits, temperature, top_p, source)
        if token in end_ids:
            return
        yield token
        if seen == positions:
            say(f"\nThe model reads at most {positions} tokens; stopped there")
            return
        seen, read = seen + 1, torch.tensor([[token]])


def choose(logits: Tensor, temperature: float, top_p: float, source: torch.Generator) -> int:
    """The likeliest token at temperature 0; else one drawn from the likeliest that together hold top_p (Holtzman et al.
    2019, https://arxiv.org/abs/1904.09751). logits: (V,)."""
    if temperature == 0:
        return int(logits.argmax())
    shares, tokens = (logits / temperature).softmax(-1).sort(descending=True, stable=True)
    before = shares.cumsum(-1) - shares
    before[0] = -1.0  # the likeliest stays
    shares = shares.masked_fill(before >= top_p, 0.0)
    return int(tokens[torch.multinomial(shares, 1, generator=source)])
