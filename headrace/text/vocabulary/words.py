"""Sentences -> words: by MeCab (unidic-lite) or by white space; and which word each character belongs to.

"私は 犬だ" -> MeCab: 私|は|犬|だ -> word of each character: 0 1 . 2 3   (. = the next word's)
"""

import re
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from headrace.errors import MissingExtraError

WordRule = Literal["auto", "mecab", "whitespace"]

JAPANESE = re.compile(  # 々〆〇, kana, kanji with extensions and compatibility forms, half-width kana
    r"[\u3005-\u3007\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff]"
)
CONTROLS = dict.fromkeys(range(32), " ")  # MeCab reads C strings: NUL would end the sentence


@lru_cache(maxsize=1)
def _tagger():
    try:
        import fugashi
        import unidic_lite
    except ImportError as error:
        raise MissingExtraError("Splitting Japanese into words with MeCab", "fugashi with unidic-lite", "ja") from error
    folder = Path(unidic_lite.DICDIR)
    # -Owakati returns one string of words; building a node object a word is five times slower
    return fugashi.GenericTagger(  # pyright: ignore[reportAttributeAccessIssue] (a compiled module)
        f'-Owakati -d "{folder}" -r "{folder / "mecabrc"}"'
    )


def mecab_words(sentence: str) -> list[str]:
    """MeCab's surfaces, in order; spaces, U+3000 among them, are not words."""
    return [word for word in _tagger().parse(sentence).split(" ") if word and not word.isspace()]


def word_of_character(sentence: str, words: WordRule = "auto") -> np.ndarray:
    """The number of the word each character belongs to, plus one entry for the end of the sentence.

    A space has the number of the word that follows it, because tokenizers glue a space to the next word.
    `auto`: MeCab when the sentence holds kana or kanji, else white space.
    """
    if words == "auto":
        words = "mecab" if JAPANESE.search(sentence) else "whitespace"
    number = np.zeros(len(sentence) + 1, np.int64)
    at = count = 0
    found = mecab_words(sentence.translate(CONTROLS)) if words == "mecab" else sentence.split()
    for word in found:
        start = sentence.find(word, at)
        if start < 0:  # MeCab changed a character: leave the rest one word rather than guess
            break
        number[at : start + len(word)] = count
        at = start + len(word)
        count += 1
    number[at:] = count
    return number


def starts_by_words(number: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """True where a token's first character that is not a space belongs to another word than the previous token's.

    offsets: (tokens, 2) characters. The first token is always a start.
    """
    starts = np.ones(len(offsets), bool)
    word = number[offsets[:, 0]]
    starts[1:] = word[1:] != word[:-1]
    return starts
