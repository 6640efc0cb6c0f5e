"""Unicode policy -> a `tokenizers` normalizer: the same object prepares the text that trains a vocabulary and sits
inside the saved tokenizer.json, so whoever loads the tokenizer gets the same characters.

    text -> none | NFC | NFKC -> lower case (optional) -> accents off (optional, never kana voicing marks)
"""

from typing import Literal

from tokenizers import Regex, normalizers

UnicodeForm = Literal["none", "nfc", "nfkc"]

# Nonspacing marks, except the two kana voicing marks (U+3099, U+309A: パ must not become ハ) and the variation
# selectors, which choose a glyph (❤ or ❤️, a kanji variant) and are no accents.
ACCENTS = r"[\p{Mn}&&[^\x{3099}\x{309A}\x{FE00}-\x{FE0F}\x{E0100}-\x{E01EF}]]"

# U+32FF (2019) is younger than the Unicode tables of the Rust NFKC; its decomposition is 令和.
ERA_REIWA = ("\u32ff", "令和")


def normalizer(unicode: UnicodeForm, lowercase: bool = False, strip_accents: bool = False):
    """The normalizer of these settings, or None when they change nothing.

    Accents are found by decomposing, so with `strip_accents` the result is composed (NFC) whatever `unicode` says.
    """
    steps: list[normalizers.Normalizer] = []
    if unicode == "nfkc":
        steps += [normalizers.Replace(*ERA_REIWA), normalizers.NFKC()]
    elif unicode == "nfc":
        steps += [normalizers.NFC()]
    elif unicode != "none":
        raise ValueError(f"unicode = {unicode!r}: choose none, nfc or nfkc")
    if lowercase:
        steps += [normalizers.Lowercase()]
    if strip_accents:
        steps += [normalizers.NFD(), normalizers.Replace(Regex(ACCENTS), ""), normalizers.NFC()]
    return normalizers.Sequence(steps) if steps else None
