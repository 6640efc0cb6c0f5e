"""A causal language model goes on with a text, one token at a time.

    folder -> model, with as many segments at hand as memory allows and the rest read from the folder at each token
    prompt -> ids -> [next token, ...] -> text, as it comes

Weights that are read are read whole for every token, so only what fits is fast. The keys and values of earlier tokens are
kept either way. Arithmetic is fp32.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer, DynamicCache, PreTrainedModel
from transformers.utils import logging as transformers_logging

from headrace.errors import UserError
from headrace.models.blank import fill_blanks, placeholder
from headrace.models.initial import names_in_folder, weights_from_folder
from headrace.models.segments import Segment, segments_of
from headrace.progress import say
from headrace.tasks import causal_lm
from headrace.text.vocabulary import open_vocabulary
from headrace.text.vocabulary.vocabulary import DESCRIPTION_FILE

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class Writer:
    """A model with what turns text into its tokens and back."""

    model: PreTrainedModel
    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    end_ids: frozenset[int]

    def write(
        self, prompt: str, max_tokens: int, temperature: float = 0.0, top_p: float = 1.0, seed: int = 0
    ) -> Iterator[str]:
        """The continuation, piece by piece; a character made of several tokens comes when it is whole."""
        ids = self.encode(prompt)
        if not ids:
            raise UserError("the prompt holds no token; give some text")
        said, found = "", []
        source = torch.Generator().manual_seed(seed)
        for token in next_tokens(self.model, ids, max_tokens, self.end_ids, temperature, top_p, source):
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
    (up to num_tokens) and what is being read may take; None = all weights are at hand. Raises UserError."""
    transformers_logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: not a Hugging Face model folder: {str(error).splitlines()[0]}") from None
    causal_lm.check_config(config, config.model_type)
    if memory_bytes is None:
        model = causal_lm.load_model(str(folder))
    else:
        with torch.device("meta"):
            model = causal_lm.new_model(config)
        fill_blanks(model, torch.device("cpu"))
        _place(model, folder, memory_bytes, num_tokens)
    model.eval().requires_grad_(False)
    encode, decode, end_id = _text_of(folder)
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    return Writer(model, encode, decode, frozenset(i for i in (*ends, end_id) if i is not None))


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


class ReadSegment(nn.Module):
    """Reads the weights of `block`, the module it replaced, runs it and forgets them."""

    def __init__(self, block: nn.Module, folder: Path, weights: Segment, names: dict[str, str]):
        super().__init__()
        self.block, self.folder, self.weights, self.names = block, folder, weights, names
        for name, value in vars(block).items():  # some models ask their blocks what kind they are
            if not name.startswith("_") and name != "training" and isinstance(value, str | int | float | bool):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        _read(self.folder, self.weights, self.names)
        result = self.block(*args, **kwargs)
        for parameter in self.weights.parameters.values():
            parameter.data = placeholder(parameter.shape)
        return result


def _place(model: PreTrainedModel, folder: Path, memory_bytes: int, num_tokens: int) -> None:
    """Bring in the segments that fit, first ones first, and let the others be read when they run."""
    segments = segments_of(model)
    names = names_in_folder(folder, model)
    parameters = {name: p for segment in segments for name, p in segment.parameters.items()}

    def num_bytes(used: Sequence[str]) -> int:
        return sum(4 * parameters[name].numel() for name in used)

    config: Any = model.config
    kept = 8 * config.num_hidden_layers * config.hidden_size * num_tokens
    # Twice: as it lies in the file, and in fp32.
    free = memory_bytes - kept - 2 * max(num_bytes([*s.parameters, *s.borrowed]) for s in segments)
    if free < 0:
        raise UserError(
            f"--memory = {memory_bytes:,} bytes is too little for this model: its largest part alone takes "
            f"{memory_bytes - free:,}"
        )
    here: set[str] = set()
    for segment in segments:
        if num_bytes(list(segment.parameters)) <= free or not segment.modules:
            free -= num_bytes(list(segment.parameters))
            here |= segment.parameters.keys()
            _read(folder, segment, names)
    for segment in segments:
        used = [name for name in (*segment.parameters, *segment.borrowed) if name not in here]
        if used:
            absent = Segment(segment.name, segment.modules, {name: parameters[name] for name in used})
            for path in segment.modules:
                model.set_submodule(path, ReadSegment(model.get_submodule(path), folder, absent, names))
    if read_bytes := num_bytes([name for name in parameters if name not in here]):
        say(f"{read_bytes / 2**30:.2f} GiB of weights do not fit and are read for every token")


def _read(folder: Path, segment: Segment, names: dict[str, str]) -> None:
    in_file = {names.get(name, name): parameter for name, parameter in segment.parameters.items()}
    weights = weights_from_folder(folder, Segment(segment.name, segment.modules, in_file))
    for name, parameter in in_file.items():
        parameter.data = weights[name]
