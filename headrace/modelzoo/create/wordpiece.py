"""Google BERT's tokenizer as the Model Zoo has it, over a vocab.txt: sentence -> `clean` -> WordPiece.

Same tokens as the Model Zoo's `FullTokenizer` (release 1.6.1), but accents stay unless asked: it decomposes all
text and drops every mark, in cased mode too, which turns パンダ into ハンタ. Like it, control characters are deleted,
tabs among them, words are cut at spaces, Han characters and punctuation, and a word has at most 200 characters.
Ids are line numbers, where it re-orders them for a cased vocabulary under --do_lower_case.
"""

import unicodedata
from collections.abc import Callable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headrace.errors import InputError, UserError
from headrace.text.vocabulary.save import describe, written_aside
from headrace.text.vocabulary.vocabulary import ROLES

LONGEST_WORD_CHARACTERS = 200  # tokenization.py of google-research/bert
_DELETED = ("Cc", "Cf")


class _Cleaned(dict):
    """For str.translate: control and format characters go, space separators become spaces. Filled as it is used."""

    def __missing__(self, code: int) -> int | None:
        category = unicodedata.category(chr(code))
        self[code] = None if category in _DELETED or code == 0xFFFD else 32 if category == "Zs" else code
        return self[code]


_CLEANED = _Cleaned()


def cleaner(lowercase: bool, strip_accents: bool) -> Callable[[str], str]:
    """What happens to a sentence before words are looked up."""

    def clean(text: str) -> str:
        if (
            not text.isprintable() or "\ufffd" in text
        ):  # all that is not printable is looked up, nothing else can change
            text = text.translate(_CLEANED)
        if lowercase:
            text = text.lower()
        if strip_accents and not text.isascii():
            decomposed = unicodedata.normalize("NFD", text)
            text = "".join(character for character in decomposed if unicodedata.category(character) != "Mn")
            text = text.lower() if lowercase else text
        return text

    return clean


def save_wordpiece(path: Path, folder: Path, lowercase: bool, strip_accents: bool) -> None:
    """Make the tokenizer folder of a vocab.txt; its text must have gone through `cleaner`.

    Raises UserError, InputError: not a WordPiece vocabulary; an entry that is there twice (file and line)."""
    try:
        entries = [line.removesuffix("\r") for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
    except UnicodeDecodeError as error:
        raise InputError(f"--vocab_file {path}: not UTF-8 at byte {error.start}") from error
    ids: dict[str, int] = {}
    for number, entry in enumerate(entries):
        if entry in ids:
            raise InputError(f"{path}:{number + 1}: {entry!r} is there twice, first in line {ids[entry] + 1}")
        ids[entry] = number
    names = {role: f"[{role.upper()}]" for role in ROLES}
    missing = [name for name in names.values() if name not in ids]
    if missing:
        raise UserError(
            f"--vocab_file {path}: no {', '.join(missing)} in it; give a BERT vocab.txt (an entry a line), a SentencePiece "
            ".model or a Hugging Face tokenizer folder"
        )
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=LONGEST_WORD_CHARACTERS))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=False, handle_chinese_chars=True, strip_accents=False, lowercase=False
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(" +"), "removed"), pre_tokenizers.Punctuation("isolated")]
    )
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.add_special_tokens(list(names.values()))
    with written_aside(folder) as aside:
        tokenizer.save(str(aside / "tokenizer.json"))  # all that `open_vocabulary` reads, and no need of transformers
        describe(
            aside,
            kind="wordpiece",
            ids={role: ids[name] for role, name in names.items()},
            unicode="own",
            lowercase=lowercase,
            strip_accents=strip_accents,
            source=str(path),
        )
