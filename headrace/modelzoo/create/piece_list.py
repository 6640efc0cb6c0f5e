"""A SentencePiece vocabulary as a list of pieces (`spm_train`'s .vocab, or its first column as vocab.txt) -> tokenizer.

The script takes such a file for WordPiece, finds no word in it, and writes [UNK]s. The list lacks what the .model
knows: how the text was normalised (NFKC, SentencePiece's default, is assumed) and, without the second column, how
likely each piece is. Pieces are listed from likely to rare, so their rank stands in for it (Zipf's law).
"""

import math
from pathlib import Path

from headrace.errors import InputError, UserError
from headrace.text.normalization import normalizer
from headrace.text.vocabulary.save import describe, written_aside
from headrace.text.vocabulary.sentencepiece_model import (
    CONTROL,
    NORMAL,
    SPACE,
    UNIGRAM,
    UNKNOWN,
    Piece,
    SentencePieceModel,
    to_tokenizer,
)
from headrace.text.vocabulary.vocabulary import ROLES

_CONTROLS = ("<unk>", "<s>", "</s>", "<pad>")


def is_piece_list(path: Path) -> bool:
    """Whether entries begin with ▁ and none with ##."""
    text = path.read_text("utf-8", errors="replace")
    return f"\n{SPACE}" in text and "\n##" not in text


def save_piece_list(path: Path, folder: Path, lowercase: bool, strip_accents: bool) -> None:
    """Make the tokenizer folder; ids are line numbers. Raises UserError, InputError: special tokens that are missing, a
    piece that is there twice, a score that is no number (file and line)."""
    names = {role: f"[{role.upper()}]" for role in ROLES}
    pieces: list[Piece] = []
    lines: dict[str, int] = {}
    for number, line in enumerate(path.read_text("utf-8").removesuffix("\n").split("\n")):
        text, tab, column = line.removesuffix("\r").partition("\t")
        if text in lines:
            raise InputError(f"{path}:{number + 1}: {text!r} is there twice, first in line {lines[text] + 1}")
        lines[text] = number
        try:
            score = float(column) if tab else -math.log(number + 1)
        except ValueError:
            raise InputError(f"{path}:{number + 1}: after a tab a piece's score is expected, not {column!r}") from None
        special = text in _CONTROLS or text in names.values() or not text
        kind = UNKNOWN if text == "[UNK]" else CONTROL if special else NORMAL
        pieces.append(Piece(text, score, kind))
    missing = [name for name in names.values() if name not in lines]
    if missing:
        raise UserError(
            f"--vocab_file {path}: pieces of SentencePiece without {', '.join(missing)}; add them to the list (ids are line "
            "numbers), or give the .model file, to which they are added"
        )
    model = SentencePieceModel(pieces, UNIGRAM, lines["[UNK]"], False, b"", True, True)
    tokenizer = to_tokenizer(model, list(names.values()), normalizer("nfkc", lowercase, strip_accents))
    with written_aside(folder) as aside:
        tokenizer.save(str(aside / "tokenizer.json"))
        describe(
            aside,
            kind="unigram",
            ids={role: lines[name] for role, name in names.items()},
            unicode="own",
            lowercase=lowercase,
            strip_accents=strip_accents,
            source=str(path),
        )
