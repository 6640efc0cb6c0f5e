"""A vocabulary and text of a domain -> the same vocabulary with entries for what the text says often and it cuts up.

    WordPiece     pancreatitis -> pan ##cr ##eat ##itis      "pancreatitis" becomes an entry
    unigram       ▁臨床試験 -> ▁ 臨床 試験                     a piece that a unigram model of the text has and ours lacks

Old entries keep their ids, new ones follow; each remembers the ids its text had before, whose rows a model's new rows are
begun from. What is added is part of the tokenizer's own model, not an "added token", so `AutoTokenizer` cuts text as we do.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from headrace.errors import UserError
from headrace.text.vocabulary.save import save_fast, written_aside
from headrace.text.vocabulary.sentencepiece_model import SPACE
from headrace.text.vocabulary.train import pieces_of_text
from headrace.text.vocabulary.vocabulary import (
    DESCRIPTION_FILE,
    ROLES,
    Vocabulary,
    open_vocabulary,
    without_special_tokens,
)

LEAST_OCCURRENCES = 3
"""A word seen less often is not worth a row."""
_WORDS_AT_ONCE = 10_000


def extend_vocabulary(folder: Path, lines: Iterable[str], count: int, causal: bool = False) -> Vocabulary:
    """Add up to `count` entries to the vocabulary in `folder`, which `load_vocabulary` made. Raises UserError."""
    vocabulary = open_vocabulary(folder)
    if vocabulary.kind not in ("wordpiece", "unigram"):
        raise UserError(
            f"text.vocabulary.extend = {count}: a {vocabulary.kind} vocabulary cannot be extended, only WordPiece over spaces "
            "and SentencePiece unigram ones; leave it out"
        )
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    size_before = tokenizer.get_vocab_size(with_added_tokens=True)
    plain = without_special_tokens(tokenizer)
    if vocabulary.kind == "wordpiece":
        found = dict.fromkeys(_new_words(plain, lines, count))
    else:
        found = _new_pieces(tokenizer, lines, count)
    if not found:
        raise UserError(
            f"text.vocabulary.extend = {count}: the text holds no word that the vocabulary cuts up {LEAST_OCCURRENCES} times"
        )
    pieces = [_ids_of(plain, text) for text in found]
    data = json.loads(tokenizer.to_str())
    _append(data, found, size_before)
    extended = Tokenizer.from_str(json.dumps(data))
    assert extended.get_vocab_size(with_added_tokens=True) == size_before + len(found)
    description = vocabulary.description | {"extension": {"size_before": size_before, "pieces": pieces}}
    special = {role: tokenizer.id_to_token(vocabulary.description["ids"][role]) for role in ROLES}
    with written_aside(folder) as aside:
        save_fast(extended, {role: text for role, text in special.items() if text is not None}, aside, causal)
        text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
        (aside / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
    return open_vocabulary(folder)


def _ids_of(plain: Tokenizer, text: str) -> list[int]:
    """The ids a new entry's text has had: words as text, pieces as what stands in the normalised text."""
    if type(plain.model).__name__ == "WordPiece":
        return plain.encode(text, add_special_tokens=False).ids
    return [token.id for token in plain.model.tokenize(text)]


def _new_words(plain: Tokenizer, lines: Iterable[str], count: int) -> list[str]:
    """Words, as the tokenizer normalises and cuts text, that take several entries: those that save most first."""
    normalizer: Any = plain.normalizer
    splitter: Any = plain.pre_tokenizer
    seen: Counter[str] = Counter()
    for line in lines:
        text = normalizer.normalize_str(line) if normalizer is not None else line
        seen.update(word for word, _ in splitter.pre_tokenize_str(text))
    unknown = plain.token_to_id(plain.model.unk_token)
    saved: dict[str, int] = {}
    for word, times in seen.items():
        if times < LEAST_OCCURRENCES or not word.isalpha():
            continue
        ids = [token.id for token in plain.model.tokenize(word)]
        if len(ids) > 1 and unknown not in ids:
            saved[word] = times * (len(ids) - 1)
    return sorted(saved, key=lambda word: (-saved[word], word))[:count]


def _new_pieces(tokenizer: Tokenizer, lines: Iterable[str], count: int) -> dict[str, float]:
    """Pieces of a unigram model trained on the text that ours lacks, likeliest first, with a score at which a text that is the
    piece is no longer cut: a little over what its parts have, or the share it has in the text where that is more."""
    data = json.loads(tokenizer.to_str())
    scores = dict(data["model"]["vocab"])
    normalizer: Any = tokenizer.normalizer
    texts = [normalizer.normalize_str(line) if normalizer is not None else line for line in lines]
    texts = [text.replace(SPACE, " ").strip() for text in texts]
    found: dict[str, float] = {}
    for text, score in pieces_of_text([text for text in texts if text], 2 * count):
        parts = [token.value for token in tokenizer.model.tokenize(text)]
        if text in scores or len(parts) < 2 or any(part not in scores for part in parts):
            continue
        found[text] = max(score, math.nextafter(sum(scores[part] for part in parts), 0) + 1e-3)
        if len(found) == count:
            break
    return found


def _append(data: dict[str, Any], found: dict[str, Any], size_before: int) -> None:
    """Put entries behind the last id, special tokens that stand behind the model's own entries included."""
    entries = data["model"]["vocab"]
    behind = sorted((token["id"], token["content"]) for token in data["added_tokens"] if token["id"] >= len(entries))
    if isinstance(entries, dict):
        entries.update({text: id for id, text in behind})
        entries.update({text: size_before + i for i, text in enumerate(found)})
    else:
        least = min(score for _, score in entries) - 10.0
        entries += [[text, least] for _, text in behind] + [[text, score] for text, score in found.items()]
