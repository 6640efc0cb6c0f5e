"""The figures of the tool's fine-tuning models, as each of its two frameworks defines and names them.

                TensorFlow                                                     PyTorch
classifier      eval/accuracy_cls; of two labels eval/f1_score (of label 1)    eval/accuracy; of two labels eval/f1_score
                and eval/mcc                                                   (micro: the accuracy again)
MNLI            eval/accuracy_matched and eval/accuracy_mismatched             the same
tokens          eval/token_level_macro_f1: mean F1 of the labels that          eval/f1_score: the same
                begin with B or I
questions       none: the loss alone
summaries       eval/rouge1-... and eval/rouge2-precision, -recall, -f1_score  eval/rouge1, eval/rouge2: the same of each

ROUGE is between the sentences that are taken and those that were to be taken: n-grams of words, in lower case and without
punctuation, counted over all texts. Source: R_1.6.1 common/{tf,pytorch}/metrics, fine_tuning/*/model.py.
Padding is not counted. Shapes: N examples, K labels, L tokens, S sentences.
"""

import string
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from headrace.labelled.tags import IGNORED
from headrace.modelzoo.fine_tuning.feature_set import Item
from headrace.modelzoo.vocabulary import entries_of
from headrace.text.batches import Batch

SPECIAL_WORDS = {"[pad]", "[cls]", "[sep]"}


def batch_loss(job: str, outputs: Sequence[np.ndarray], items: Sequence[Item], batch: Batch) -> float:
    """The loss of one batch, divided and weighed as in training."""
    total = 0.0
    for logits, item in zip(outputs, items, strict=True):
        given, feature = torch.from_numpy(logits).double(), item.feature
        if job == "classifier":
            total += F.cross_entropy(given[None], torch.tensor([feature.label])).item() / batch.num_examples
        elif job == "qa":
            ends = torch.tensor(feature.label)
            each = F.cross_entropy(given.T, ends, reduction="sum", ignore_index=IGNORED).item()
            total += each / 2 * batch.loss_weight / batch.num_examples
        else:
            given = given[torch.from_numpy(feature.target_positions)] if job == "token_classifier" else given
            each = F.cross_entropy(given, torch.from_numpy(feature.target_ids), reduction="sum").item()
            total += each / batch.target_divisor
    return total


def figures_of(
    job: str,
    outputs: Sequence[np.ndarray],
    items: Sequence[Item],
    *,
    tensorflow: bool,
    labels: Sequence[str] | None,
    vocab_file: str | None,
) -> dict[str, float]:
    """The figures of all examples together, by the tool's names. vocab_file None: summaries have no words to compare."""
    if job == "classifier":
        return _of_classes(outputs, items, tensorflow)
    if job == "token_classifier":
        assert labels is not None
        name = "eval/token_level_macro_f1" if tensorflow else "eval/f1_score"
        return {name: _macro_f1(outputs, items, labels)}
    if job == "extractive_summarization" and vocab_file is not None and Path(vocab_file).exists():
        return _rouge(outputs, items, entries_of(Path(vocab_file)).texts, tensorflow)
    return {}


def _of_classes(outputs: Sequence[np.ndarray], items: Sequence[Item], tensorflow: bool) -> dict[str, float]:
    guess = np.array([logits.argmax() for logits in outputs])
    truth = np.array([item.feature.label for item in items])
    right = guess == truth
    found = {"eval/accuracy_cls" if tensorflow else "eval/accuracy": float(right.mean())}
    matched = np.array([item.matched is True for item in items])
    if items[0].matched is not None:
        for name, side in (("eval/accuracy_matched", matched), ("eval/accuracy_mismatched", ~matched)):
            found[name] = float(right[side].mean()) if side.any() else 0.0
    if len(outputs[0]) != 2:
        return found
    if not tensorflow:
        return {**found, "eval/f1_score": float(right.mean())}
    both, one, other = int((guess & truth).sum()), int(guess.sum()), int(truth.sum())
    neither = len(guess) - one - other + both
    spread = float(one) * other * (len(guess) - one) * (len(guess) - other)
    found["eval/f1_score"] = _f1(both, one, other)
    missed = (one - both) * (other - both)
    found["eval/mcc"] = (both * neither - missed) / spread**0.5 if spread else 0.0
    return found


def _f1(both: int, guessed: int, true: int) -> float:
    return 2 * both / (guessed + true) if guessed + true else 0.0


def _macro_f1(outputs: Sequence[np.ndarray], items: Sequence[Item], labels: Sequence[str]) -> float:
    guess = np.concatenate([logits.argmax(-1) for logits in outputs])
    truth = np.concatenate([item.feature.target_ids for item in items])
    kept = [i for i, label in enumerate(labels) if label.startswith(("B", "I"))]
    each = [
        _f1(int(((guess == i) & (truth == i)).sum()), int((guess == i).sum()), int((truth == i).sum())) for i in kept
    ]
    return float(np.mean(each)) if each else 0.0


def _rouge(
    outputs: Sequence[np.ndarray], items: Sequence[Item], entries: Sequence[str], tensorflow: bool
) -> dict[str, float]:
    found = {}
    for n in (1, 2):
        both = guessed = true = 0
        for logits, item in zip(outputs, items, strict=True):
            a = _ngrams(taken_words(item, taken_by(logits), entries), n)
            b = _ngrams(taken_words(item, item.feature.target_ids, entries), n)
            both, guessed, true = both + (a & b).total(), guessed + a.total(), true + b.total()
        parts = {
            "precision": both / guessed if guessed else 0.0,
            "recall": both / true if true else 0.0,
            "f1_score": _f1(both, guessed, true),
        }
        found |= {f"eval/rouge{n}{'-' if tensorflow else '/'}{name}": value for name, value in parts.items()}
    return found


def taken_by(logits: np.ndarray) -> np.ndarray:
    """Which sentences a model takes, 0 or 1 (S,)."""
    return logits.argmax(-1)


def taken_words(item: Item, taken: np.ndarray, entries: Sequence[str]) -> list[str]:
    """The words of the sentences that are taken, of those that count."""
    assert item.starts is not None
    row, starts = item.feature.rows[0], item.starts.tolist()
    chosen = set(item.feature.target_positions[taken != 0].tolist())
    pieces: list[str] = []
    for start, stop in zip(starts, [*starts[1:], len(row)], strict=True):
        if start in chosen:
            pieces += [entries[int(i)] if i < len(entries) else "" for i in row[start:stop]]
    ignored = set(string.punctuation) | SPECIAL_WORDS
    words = " ".join(pieces).replace(" ##", "").lower().split(" ")
    return [word for word in words if word and word not in ignored]


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[k : k + n]) for k in range(len(words) - n + 1))
