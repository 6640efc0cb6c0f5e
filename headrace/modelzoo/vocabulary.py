"""vocab_file of a params file -> its entries, and which of them are special.

A vocab.txt or a list of SentencePiece pieces, one a line; a SentencePiece .model or a Hugging Face tokenizer folder, with ids as
`headrace-create-tfrecords` has them.
"""

import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from headrace.errors import InputError
from headrace.text.vocabulary import load_vocabulary
from headrace.text.vocabulary.vocabulary import ROLES

SPECIAL = tuple(f"[{role.upper()}]" for role in ROLES)
MODEL_SUFFIXES = (".model", ".spm", ".spiece")


@dataclass(frozen=True)
class Entries:
    """texts: in the order of their ids; special: [PAD], [UNK], [CLS], [SEP], [MASK], those that there are, and their ids."""

    texts: tuple[str, ...]
    special: dict[str, int]

    @property
    def are_pieces(self) -> bool:
        """Whether words begin with ▁, and none goes on with ##."""
        return any(text.startswith("▁") for text in self.texts) and not any(text[:2] == "##" for text in self.texts)


def entries_of(path: Path) -> Entries:
    """Raises InputError, UserError: no text, or no vocabulary."""
    return _entries(path.resolve(), path.stat().st_mtime_ns)


def ids_of_entries(path: Path, lowercase: bool) -> dict[str, int]:
    """The ids of the entries, special ones under their usual names, too; all in lower case where that is asked for."""
    entries = entries_of(path)
    ids = {text.lower() if lowercase and text not in SPECIAL else text: i for i, text in enumerate(entries.texts)}
    ids |= entries.special
    if lowercase:
        ids |= {text.lower(): i for text, i in entries.special.items()}
    return ids


@lru_cache(maxsize=4)
def _entries(path: Path, _: int) -> Entries:
    if path.is_dir() or path.suffix in MODEL_SUFFIXES:
        with tempfile.TemporaryDirectory() as folder:
            vocabulary = load_vocabulary(path, Path(folder) / "vocabulary")
            texts = tuple(vocabulary.token_text(i) for i in range(vocabulary.size))
        ids = (vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id)
        return Entries(texts, dict(zip(SPECIAL, ids, strict=True)))
    try:
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is no UTF-8 text with an entry a line ({error.reason}); give the vocabulary"
        ) from None
    texts = tuple(line.removesuffix("\r") for line in lines)
    if any(text.startswith("▁") and "\t" in text for text in texts):  # spm_train's .vocab: a score in column 2
        texts = tuple(text.partition("\t")[0] for text in texts)
    return Entries(texts, {text: i for i, text in enumerate(texts) if text in SPECIAL})
