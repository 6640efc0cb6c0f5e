"""A tokenizer folder -> `Vocabulary`: sentences in, token ids out, and what masking needs to know about the ids.

    sentence -> [MeCab words joined by spaces: wordpiece_mecab only] -> Rust tokenizer without special tokens -> ids

A sentence of the corpus that spells "[MASK]" is text, never the special token; `AutoTokenizer` on the same folder
does read it as the special token, and gives the same ids for everything else.
"""

import json
import os
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from headrace.errors import UserError
from headrace.text.vocabulary.bins import bin_ids, values_of
from headrace.text.vocabulary.kmers import overlapping_ids
from headrace.text.vocabulary.sentencepiece_model import BEFORE_ANY_TEXT, NOT_BEFORE
from headrace.text.vocabulary.words import JAPANESE, WordRule, mecab_words, starts_by_words, word_of_character

DESCRIPTION_FILE = "vocabulary.json"  # written last: a folder without it is not finished
ROLES = ("pad", "unk", "cls", "sep", "mask")
# What a saved tokenizer must give back exactly; WordPiece forgets where spaces were, loaded ones may trim them.
EXACT_KINDS = ("unigram", "bpe", "character", "byte", "kmer")
NOT_TEXT = re.compile(r"\[unused\d+\]|<unused\d+>|<0x[0-9A-F]{2}>")


def open_vocabulary(folder: Path | str, in_worker: bool = False) -> "Vocabulary":
    """Opens a folder written by `train_vocabulary` or `load_vocabulary`, without importing transformers.

    in_worker: this process is one of several that tokenize, so the Rust side keeps to one thread.
    """
    folder = Path(folder)
    if in_worker:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        description = json.loads((folder / DESCRIPTION_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{folder}: no finished vocabulary of headrace ({error}); give a tokenizer from elsewhere as "
            "text.vocabulary.load"
        ) from error
    return Vocabulary(folder, description)


@dataclass(frozen=True)
class Extension:
    """Entries added after the first size_before, each with the ids its text had until then."""

    size_before: int
    pieces: tuple[tuple[int, ...], ...]


class Vocabulary:
    """Immutable, and pickled as its folder: a worker process opens the files again."""

    def __init__(self, folder: Path, description: dict[str, Any]):
        self.folder = folder
        self.description = description
        self.kind: str = description["kind"]
        self.exact: bool = description["exact"]
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (description["ids"][role] for role in ROLES)
        if self.kind == "wordpiece_mecab":
            self._full = mecab_backend(folder / "vocab.txt")
        else:
            self._full = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._plain = without_special_tokens(self._full)
        self.size = self._full.get_vocab_size(with_added_tokens=True)

    def __reduce__(self):
        return open_vocabulary, (self.folder,)

    def __repr__(self) -> str:
        return f"Vocabulary({self.kind}, {self.size} entries, {self.folder})"

    @property
    def shared_characters(self) -> int:
        """How many characters two neighbouring tokens share: k - 1 for overlapping k-mers, else 0."""
        return (
            self.description["kmer"]["k"] - 1 if self.kind == "kmer" and self.description["kmer"]["overlapping"] else 0
        )

    @property
    def bin_edges(self) -> np.ndarray:
        """Where one bin of numbers ends and the next begins, (B - 1,), rising; bins only."""
        return np.array(self.description["bins"]["edges"])

    @property
    def bin_centres(self) -> np.ndarray:
        """The number each bin stands for, (B,), rising; bins only."""
        return np.array(self.description["bins"]["centres"])

    @property
    def extension(self) -> "Extension | None":
        """What was learnt on top of a loaded vocabulary."""
        found = self.description.get("extension")
        return None if found is None else Extension(found["size_before"], tuple(map(tuple, found["pieces"])))

    # --- text -> ids -> text

    def normalize(self, text: str) -> str:
        """The text as the vocabulary sees it: what `decode` gives back."""
        if self.kind == "wordpiece_mecab":
            text = self._normalize_for_mecab(text)
            return text.lower() if self.description["lowercase"] else text
        steps = self._unicode if self.description["trained"] else self._plain.normalizer
        return steps.normalize_str(text) if steps is not None else text

    def encode_batch(self, sentences: list[str]) -> list[list[int]]:
        """Token ids of each sentence, no special tokens."""
        if self.shared_characters:
            k = self.shared_characters + 1
            return [overlapping_ids(sentence, k, self.unk_id).tolist() for sentence in sentences]
        if self.kind == "bins":
            return [bin_ids(values_of(sentence), self.bin_edges).tolist() for sentence in sentences]
        if self.kind == "wordpiece_mecab":
            sentences = [self._mecab_text(sentence) for sentence in sentences]
        return [encoding.ids for encoding in self._plain.encode_batch_fast(sentences, add_special_tokens=False)]

    def decode(self, ids: list[int] | np.ndarray) -> str:
        """The text of the ids, special tokens left out."""
        return self._full.decode([int(i) for i in ids], skip_special_tokens=True)

    def token_text(self, id: int) -> str:
        """The entry as it is written in the vocabulary, with its ##, ▁ or byte letters."""
        return self._added.get(int(id)) or self._full.id_to_token(int(id)) or ""

    def round_trips(self, sentence: str, ids: list[int] | np.ndarray) -> bool:
        """Whether decoding gives the normalised sentence back: to the character where the kind keeps white space,
        else but for white space. An unknown token always makes it False."""
        expected, found = self.normalize(sentence), self.decode(ids)
        if self.kind == "bins":  # numbers are rounded to their bin's, once
            return self.encode_batch([found])[0] == list(ids)
        if self.exact:
            return expected == found
        return "".join(expected.replace("▁", " ").split()) == "".join(found.split())

    # --- what offsets into the raw text need

    @property
    def backend(self) -> Tokenizer:
        """The Rust tokenizer that `encode_batch` hands the sentences to, for `wordpiece_mecab` after `mecab_steps`."""
        return self._plain

    @property
    def mecab_steps(self) -> list[Callable[[str], str]]:
        """What `wordpiece_mecab` does to a sentence, one change at a time."""
        steps = [self._normalize_for_mecab, lambda text: " ".join(mecab_words(text))]
        return steps + ([str.lower] if self.description["lowercase"] else []) + [lambda text: " ".join(text.split())]

    # --- what masking needs

    @cached_property
    def normal_ids(self) -> np.ndarray:
        """Ids that may stand in for a masked token: no special token, no [unusedN], no byte-fallback piece."""
        special = {i for i, token in self._full.get_added_tokens_decoder().items() if token.special}
        special |= {self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id}
        entries = self._full.get_vocab(with_added_tokens=True)
        return np.array(sorted(i for t, i in entries.items() if i not in special and not NOT_TEXT.fullmatch(t)))

    def starts_word(self, ids: list[int] | np.ndarray) -> np.ndarray:
        """By the tokenizer's own marks: no ##, or a leading ▁ or Ġ; where neither exists (characters, bytes), the first
        of a run of spaces, which belong to the word they precede. The first token is always a start."""
        ids = np.asarray(ids, np.int64)
        starts = self._marks[ids]
        if not self._glues:
            starts[1:] &= ~self._marks[ids[:-1]]
        starts[:1] = True
        return starts

    def word_starts(self, sentence: str, ids: list[int] | np.ndarray, words: WordRule = "auto") -> np.ndarray:
        """One bool a token of `encode_batch([sentence])`: does it start a word? For whole-word masking."""
        return self.word_starts_batch([sentence], [ids], words)[0]

    def word_starts_batch(self, sentences: list[str], ids: list, words: WordRule = "auto") -> list[np.ndarray]:
        """Words are MeCab's or runs between spaces, laid over the tokens by character offsets. `auto` is MeCab for
        sentences with Japanese in them, else ## marks where the tokenizer has them, else white space."""
        if self.kind == "wordpiece_mecab":
            if words == "whitespace":
                raise UserError(
                    "text.words = whitespace: a wordpiece_mecab vocabulary has MeCab words; use auto or mecab"
                )
            return [self.starts_word(sentence_ids) for sentence_ids in ids]
        starts: list[np.ndarray] = [np.zeros(0, bool)] * len(sentences)
        aligned = []
        for i, sentence in enumerate(sentences):
            if words == "auto" and self._model == "WordPiece" and not JAPANESE.search(sentence):
                starts[i] = self.starts_word(ids[i])
            else:
                aligned.append(i)
        # Trained kinds read normalised text to the same ids, and MeCab knows its words better there.
        texts = [self.normalize(sentences[i]) if self.description["trained"] else sentences[i] for i in aligned]
        encodings = self._plain.encode_batch(texts, add_special_tokens=False)
        for i, text, encoding in zip(aligned, texts, encodings, strict=True):
            if encoding.ids != list(ids[i]):  # rare text changes again when normalised twice: J + U+030C in lower case
                text = sentences[i]
                encoding = self._plain.encode(text, add_special_tokens=False)
            assert encoding.ids == list(ids[i]), f"the ids are not those of this sentence: {sentences[i]!r}"
            offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
            starts[i] = starts_by_words(word_of_character(text, words), offsets)
        return starts

    # --- inside

    @cached_property
    def _unicode(self):
        from headrace.text.normalization import normalizer

        settings = self.description
        return normalizer(settings["unicode"], settings["lowercase"], settings["strip_accents"])

    def _normalize_for_mecab(self, text: str) -> str:
        return unicodedata.normalize("NFKC", text) if self.description["unicode"] == "nfkc" else text

    def _mecab_text(self, sentence: str) -> str:
        # Lower case after MeCab, white space by Python's rule: what transformers' BertJapaneseTokenizer does.
        for step in self.mecab_steps:
            sentence = step(sentence)
        return sentence

    @cached_property
    def _added(self) -> dict[int, str]:
        """id_to_token gives these as the normaliser leaves them, `[cls]` where it makes lower case."""
        return {i: token.content for i, token in self._full.get_added_tokens_decoder().items()}

    @cached_property
    def _model(self) -> str:
        return type(self._full.model).__name__

    @cached_property
    def _glues(self) -> bool:
        """Whether tokens carry marks of their own; characters and bytes do not."""
        return self.kind not in ("character", "byte", "kmer")

    @cached_property
    def _marks(self) -> np.ndarray:
        texts = [self.token_text(i) for i in range(self.size)]
        if not self._glues:
            return np.array([text.isspace() or text in ("Ġ", "Ċ", "ĉ", "č") for text in texts])  # Ġ... = byte letters
        if self._model == "WordPiece":
            return np.array([not text.startswith("##") for text in texts])
        return np.array([text.startswith(("▁", "Ġ", "Ċ")) for text in texts])


def mecab_backend(vocab_file: Path) -> Tokenizer:
    """WordPiece over words that are already joined by spaces."""
    entries = vocab_file.read_text(encoding="utf-8").split("\n")
    if entries and not entries[-1]:
        entries.pop()
    tokenizer = Tokenizer(models.WordPiece({text: i for i, text in enumerate(entries)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens([text for text in entries if text in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")])
    return tokenizer


def without_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer and ids, for text only: no text, whatever it spells, becomes a special token.

    The models hold special tokens as ordinary entries (Unigram even with the best score), so they are renamed to
    start with a noncharacter (U+FDD0), which no text holds.
    """
    data = json.loads(tokenizer.to_str())
    entries = data["model"]["vocab"]
    names = entries if isinstance(entries, dict) else {entry[0] for entry in entries}
    special = {token["content"] for token in data["added_tokens"] if token["special"]}
    others = [token for token in data["added_tokens"] if not token["special"]]
    data["post_processor"] = data["truncation"] = data["padding"] = None
    if any(token["content"] not in names for token in others):
        # Ids of such tokens follow those of the special ones, so these must stay; the library's own switch then.
        plain = Tokenizer.from_str(json.dumps(data))
        plain.encode_special_tokens = True
        return plain
    for step in (data["normalizer"] or {}).get("normalizers", []):
        pattern = step.get("pattern", {}).get("Regex", "")
        if pattern.startswith(NOT_BEFORE) and pattern.endswith(BEFORE_ANY_TEXT):
            step["pattern"] = {"Regex": NOT_BEFORE + "\ufdd0" + BEFORE_ANY_TEXT}
    rename = {text: "\ufdd0" + text for text in special}
    data["added_tokens"] = others
    if isinstance(entries, dict):
        data["model"]["vocab"] = {rename.get(text, text): i for text, i in entries.items()}
    else:
        data["model"]["vocab"] = [[rename.get(text, text), score] for text, score in entries]
    unknown = data["model"].get("unk_token")
    if unknown is not None:
        data["model"]["unk_token"] = rename.get(unknown, unknown)
    return Tokenizer.from_str(json.dumps(data))
