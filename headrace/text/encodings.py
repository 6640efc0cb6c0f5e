"""The first bytes of a text file -> the name of its encoding."""

import codecs
import re
from collections import Counter
from pathlib import Path

from headrace.errors import InputError, UserError


def detect_encoding(prefix: bytes) -> str | None:
    """The encoding of text that begins with `prefix`, or None when it looks like no text we know.

    UTF-8 wins wherever it fits. The Japanese encodings and UTF-16 without BOM must decode without error and show the
    kana and punctuation of real text; a wrong guess among them decodes to rare kanji and half-width katakana
    instead."""
    for bom, name in _BOMS:
        if prefix.startswith(bom):
            return name
    text = _decode_prefix(prefix, "utf-8")
    if text is not None and "\0" not in text:
        return "iso2022_jp_ext" if any(escape in text for escape in ("\x1b$B", "\x1b$@", "\x1b$(D")) else "utf-8"
    if text is None:
        lenient = prefix.decode(errors="replace")
        num_bad = lenient.count("\ufffd")
        if sum(not character.isascii() for character in lenient) > 10 * num_bad:
            return "utf-8"  # mostly good, so damaged UTF-8: the policy for invalid bytes decides
    for candidates in (_UTF_16,) if text is not None else (_UTF_16 + _JAPANESE, _JAPANESE_2004):
        likeness = {name: _likeness(prefix, name) for name in candidates}
        best = max(candidates, key=lambda name: likeness[name])
        if likeness[best] >= 0.4:
            return best
    if text is not None:
        return "utf-8"
    lenient = prefix.decode(errors="replace").replace("\0", "")
    num_strange = lenient.count("\ufffd") + _num_controls(Counter(lenient))
    return "utf-8" if num_strange <= 0.3 * len(lenient) else None


_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_UTF_16, _JAPANESE = ("utf-16-le", "utf-16-be"), ("cp932", "euc_jp")
_JAPANESE_2004 = ("shift_jis_2004", "euc_jis_2004")  # more characters, but Shift-JIS ＼ becomes a backslash
_LAYOUT = frozenset("\t\n\r\f\v\x1a")  # U+001A ends old DOS files
_NOT_ASCII = re.compile(rb"[\x80-\xff]")
_TYPICAL = frozenset("、。・「」『』（）？！，．\u3000")


def _decode_prefix(prefix: bytes, encoding: str) -> str | None:
    try:
        return codecs.getincrementaldecoder(encoding)().decode(prefix)  # which forgives a character cut at the end
    except UnicodeDecodeError:
        return None


def _num_controls(tally: Counter) -> int:
    return sum(count for character, count in tally.items() if character < " " and character not in _LAYOUT)


def _likeness(prefix: bytes, encoding: str) -> float:
    """Share of kana and Japanese punctuation among the non-ASCII characters (for UTF-16: of these and ASCII among
    all)."""
    start = 0
    if not encoding.startswith("utf-16") and (found := _NOT_ASCII.search(prefix)):  # a long ASCII header says nothing
        start = prefix.rfind(b"\n", 0, found.start()) + 1
    text = _decode_prefix(prefix[start : start + 65536], encoding)
    if not text:
        return 0.0
    tally = Counter(text)
    num_ascii = sum(count for character, count in tally.items() if character.isascii())
    num_private = sum(count for character, count in tally.items() if "\ud800" <= character <= "\uf8ff")
    num_half_kana = sum(count for character, count in tally.items() if "｡" <= character <= "ﾟ")
    num_typical = sum(count for character, count in tally.items() if character in _TYPICAL or "ぁ" <= character <= "ヾ")
    if _num_controls(tally) + num_private > 0.01 * len(text):
        return 0.0
    if encoding.startswith("utf-16"):
        return (num_ascii + num_typical) / len(text)
    return (num_typical - num_half_kana) / max(len(text) - num_ascii, 1)


def resolve_encoding(path: Path, encoding: str, prefix: bytes, section: str = "text") -> str:
    """`encoding` itself, or what the first bytes say when it is "auto"; `section` of the YAML is where the user set it."""
    if encoding != "auto":
        try:
            b"a".decode(encoding, "replace")
        except LookupError as error:
            known = "auto, utf-8, utf-16, cp932 (Shift-JIS), euc_jp, iso2022_jp, latin-1"
            raise UserError(
                f"{section}.encoding = {encoding} is unknown; use {known} or another Python codec."
            ) from error
        return codecs.lookup(encoding).name
    detected = detect_encoding(prefix)
    if detected is None:
        raise InputError(
            f"{path} does not look like text: it is neither UTF-8, UTF-16, Shift-JIS, EUC-JP nor ISO-2022-JP; "
            f"leave it out, or set {section}.encoding to the file's encoding."
        )
    return detected
