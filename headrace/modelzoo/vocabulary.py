"""vocab_file of a params file -> its entries in the order of their ids.

A vocab.txt or a list of SentencePiece pieces, one a line; a SentencePiece .model or a Hugging Face tokenizer folder as
`headrace-create-tfrecords` numbers them.
"""

import tempfile
from functools import lru_cache
from pathlib import Path

from headrace.errors import InputError
from headrace.text.vocabulary import load_vocabulary

PIECES_MARK = "▁"


def entries_of(path: Path) -> list[str]:
    """Raises InputError, UserError: no text, or no vocabulary."""
    return list(_entries(path.resolve(), path.stat().st_mtime_ns))


@lru_cache(maxsize=4)
def _entries(path: Path, _: int) -> tuple[str, ...]:
    if path.is_dir() or path.suffix in (".model", ".spm", ".spiece"):
        with tempfile.TemporaryDirectory() as folder:
            vocabulary = load_vocabulary(path, Path(folder) / "vocabulary")
            return tuple(vocabulary.token_text(i) for i in range(vocabulary.size))
    try:
        lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path}: is no UTF-8 text with an entry a line ({error.reason}); give the vocabulary"
        ) from None
    return tuple(
        line.removesuffix("\r").partition("\t")[0] if "\t" in line[1:] else line.rstrip("\r") for line in lines
    )


def has_pieces(entries: list[str]) -> bool:
    """Whether words begin with ▁, and none goes on with ##."""
    return any(each.startswith(PIECES_MARK) for each in entries) and not any(each.startswith("##") for each in entries)
