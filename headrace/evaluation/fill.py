"""What the model puts into a blank: sentences of the user's, and held-out sentences with one token hidden."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer, BertForPreTraining, PreTrainedModel

from headrace.errors import UserError
from headrace.text.random import key
from headrace.text.tokens import TokenFolder
from headrace.text.vocabulary import Vocabulary

TOP = 5
BLANK = "[MASK]"


@dataclass(frozen=True)
class Filled:
    """A sentence with a blank, the model's best guesses with their probabilities, and the true token where known."""

    text: str  # with one BLANK
    guesses: list[tuple[str, float]]
    truth: str | None

    def record(self) -> dict[str, Any]:
        return asdict(self)


def fill_blanks(model: PreTrainedModel, vocabulary: Vocabulary, texts: Sequence[str]) -> list[Filled]:
    """Guesses for texts that hold BLANK once, encoded as `AutoTokenizer` does; raises UserError for other texts."""
    tokenizer = AutoTokenizer.from_pretrained(vocabulary.folder)
    filled = []
    for text in texts:
        if text.count(BLANK) != 1:
            raise UserError(f"{text!r} should hold {BLANK} exactly once")
        ids = np.array(tokenizer(text)["input_ids"][1:-1], np.int64)
        at = int(np.flatnonzero(ids == vocabulary.mask_id)[0])
        filled.append(_guess(model, vocabulary, ids[:at], ids[at + 1 :], text, None))
    return filled


def fill_held_out(
    model: BertForPreTraining, vocabulary: Vocabulary, tokens: TokenFolder, count: int, seed: int
) -> list[Filled]:
    """Guesses for one hidden token in each of `count` held-out sentences of 6 to 40 tokens, chosen by seed."""
    filled: list[Filled] = []
    for shard in tokens.shards("held_out"):
        ends = shard.sentence_ends.astype(np.int64)
        lengths = np.diff(ends, prepend=0)
        suitable = np.flatnonzero((lengths >= 6) & (lengths <= 40))
        for s in np.random.Generator(np.random.PCG64(key("fill", seed))).permutation(suitable)[: count - len(filled)]:
            ids = shard.tokens[ends[s] - lengths[s] : ends[s]].astype(np.int64)
            at = key("blank", seed, int(s)) % len(ids)
            if ids[at] == vocabulary.unk_id or not vocabulary.decode(ids[at : at + 1]).strip():
                continue
            truth = vocabulary.decode(ids[at : at + 1])
            filled.append(_guess(model, vocabulary, ids[:at], ids[at + 1 :], _with_blank(vocabulary, ids, at), truth))
    return filled


@torch.no_grad()
def _guess(
    model: PreTrainedModel,
    vocabulary: Vocabulary,
    before: np.ndarray,
    after: np.ndarray,
    text: str,
    truth: str | None,
) -> Filled:
    model.eval()
    ids = np.concatenate([[vocabulary.cls_id], before, [vocabulary.mask_id], after, [vocabulary.sep_id]])
    ids = ids[: model.config.max_position_embeddings].astype(np.int64)
    output = model(torch.from_numpy(ids)[None].to(model.device))
    logits = output.prediction_logits if isinstance(model, BertForPreTraining) else output.logits
    shares = logits[0, 1 + len(before)].float().softmax(-1)  # (V,)
    shares[[vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id]] = 0.0
    best = shares.topk(TOP)
    guesses = [
        (vocabulary.decode([token]) or vocabulary.token_text(token), round(share, 4))
        for token, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return Filled(text, guesses, truth)


def _with_blank(vocabulary: Vocabulary, ids: np.ndarray, at: int) -> str:
    """The text of ids with BLANK for token `at`, spaces as the tokenizer writes them."""
    whole, upto, before = (vocabulary.decode(ids[:stop]) for stop in (len(ids), at + 1, at))
    space = " " if upto[len(before) :].startswith(" ") else ""
    return before + space + BLANK + whole[len(upto) :]
