"""What the model puts into a blank: sentences of the user's, and held-out sentences with one token hidden."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from transformers import BertForPreTraining

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


def fill_blanks(model: BertForPreTraining, vocabulary: Vocabulary, texts: Sequence[str]) -> list[Filled]:
    """Guesses for texts that hold BLANK once; others are left out."""
    filled = []
    for text in texts:
        if text.count(BLANK) != 1:
            continue
        before, after = text.split(BLANK)
        ids = _ids(vocabulary, before), _ids(vocabulary, after, continues=True)
        filled.append(_guess(model, vocabulary, *ids, text, None))
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
            text = vocabulary.decode(ids[:at]) + BLANK + _continuation(vocabulary, ids, at + 1)
            truth = vocabulary.decode(ids[at : at + 1])
            filled.append(_guess(model, vocabulary, ids[:at], ids[at + 1 :], text, truth))
    return filled


@torch.no_grad()
def _guess(
    model: BertForPreTraining, vocabulary: Vocabulary, before: np.ndarray, after: np.ndarray, text: str, truth: str | None
) -> Filled:
    model.eval()
    ids = np.concatenate([[vocabulary.cls_id], before, [vocabulary.mask_id], after, [vocabulary.sep_id]])
    ids = ids[: model.config.max_position_embeddings].astype(np.int64)
    logits = model(torch.from_numpy(ids)[None].to(model.device)).prediction_logits[0, 1 + len(before)]  # (V,)
    logits[[vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id]] = -torch.inf
    best = logits.float().softmax(-1).topk(TOP)
    guesses = [
        (vocabulary.decode([token]) or vocabulary.token_text(token), round(share, 4))
        for token, share in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return Filled(text, guesses, truth)


def _ids(vocabulary: Vocabulary, text: str, continues: bool = False) -> np.ndarray:
    """Token ids of a part of a sentence; one that continues has no word-start mark of its own in front."""
    if not text:
        return np.empty(0, np.int64)
    ids = vocabulary.encode_batch([text])[0]
    if continues and ids and vocabulary.token_text(ids[0]) == "▁" and not text.startswith(" "):
        ids = ids[1:]
    return np.array(ids, np.int64)


def _continuation(vocabulary: Vocabulary, ids: np.ndarray, start: int) -> str:
    """The text of ids[start:] as it follows the tokens before it, spaces kept."""
    whole, head = vocabulary.decode(ids), vocabulary.decode(ids[:start])
    return whole[len(head) :] if whole.startswith(head) else vocabulary.decode(ids[start:])
