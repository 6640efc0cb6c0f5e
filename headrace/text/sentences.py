"""Text in, sentences out, for Japanese and English; and the one rule by which over-long text is cut.

Joining the results loses nothing but white space at the joins. A newline always ends a sentence.

    ja: 彼は「行く。待て！」と言った。本当だ！（笑）  ->  彼は「行く。待て！」と言った。 | 本当だ！ | （笑）
    en: Mr. Smith paid 3.50. "Why?" he said.      ->  Mr. Smith paid 3.50. | "Why?" he said.
"""

import re
import unicodedata

LANGUAGES = ("ja", "en")
SEQUENCES = ("dna", "protein", "series")
"""Languages without sentences: a line is one."""

LONGEST_QUOTE_CHARACTERS = 200
"""A bracket open for longer was probably never closed, so sentence ends inside it count again."""

_JA_OPENING, _JA_CLOSING = "「『（(", "」』）)"
# An ellipsis or dash may follow the mark (「え？……」); the other kinds of bracket only trail it.
_JA_MARK = re.compile(r"[「『（(」』）)]|[。！？!?．]++[…‥―—]*+[】〉》〕］”’\"]*+")
_JA_GOES_ON = frozenset("とっではがをにもの、，,。．・やな")  # 「…。」と言った: quoted in a larger one

_EN_MARK = re.compile(
    r"(?<![.!?])[.!?]++[\"'”’)\]]*+(?=\s++[\"'“‘(\[]*+([A-Z0-9À-ÖØ-Þ]))",  # possessive: no backtracking on "......"
)
_EN_WORD_BEFORE = re.compile(r"[^\s\"'“‘(\[]*\Z")
# "etc." and "p.m." are left out: before a capital they end a sentence more often than not.
_EN_ABBREVIATIONS = frozenset(
    (
        "mr",
        "mrs",
        "ms",
        "messrs",
        "dr",
        "prof",
        "rev",
        "fr",
        "st",
        "hon",
        "gen",
        "col",
        "maj",
        "capt",
        "lt",
        "sgt",
        "sen",
    )
    + ("rep", "gov", "pres", "vs", "cf", "viz", "al", "e.g", "i.e", "eg", "ie", "approx", "dept", "est", "fig", "figs")
    + ("eq", "eqs", "inc", "ltd", "jr", "sr", "mt", "vol", "vols", "ed", "eds", "pp", "ca")
)
_EN_BEFORE_NUMBERS = frozenset(("no", "nos", "p", "art", "sec", "ch", "op", "nr"))  # "No. 5", but "He said no. Then"


def split_sentences(text: str, language: str, lines_are_sentences: bool = False) -> list[str]:
    """Sentences stripped of white space (U+3000 indents too); with `lines_are_sentences` each line is one."""
    assert language in LANGUAGES + SEQUENCES, language
    lines_are_sentences = lines_are_sentences or language in SEQUENCES
    split_line = _split_japanese if language == "ja" else _split_english
    sentences = []
    for line in text.split("\n"):
        if lines_are_sentences:
            sentences.append(line.strip())
        else:
            sentences.extend(split_line(line))
    return [sentence for sentence in sentences if sentence]


def _split_japanese(line: str) -> list[str]:
    """Cut after 。！？ and what trails them, but not inside an open 「『（, nor after 」 where the clause goes on."""
    sentences, start, depth, opened_at, closed_after_end = [], 0, 0, 0, -1
    for mark in _JA_MARK.finditer(line):
        first, stop = mark[0][0], mark.end()
        if depth and mark.start() - opened_at > LONGEST_QUOTE_CHARACTERS:
            depth = 0
        if first in _JA_OPENING:
            opened_at = opened_at if depth else mark.start()
            depth += 1
            continue
        if first in _JA_CLOSING:
            depth = max(depth - 1, 0)
            if mark.start() != closed_after_end:  # the bracket does not follow a sentence end
                continue
        elif not _ends_japanese(line, mark):
            continue
        closed_after_end = stop
        if depth or (stop < len(line) and line[stop] in _JA_CLOSING):
            continue
        if first in _JA_CLOSING and line[stop : stop + 1] in _JA_GOES_ON:
            continue
        sentences.append(line[start:stop].strip())
        start = stop
    sentences.append(line[start:].strip())
    return sentences


def _ends_japanese(line: str, mark: re.Match[str]) -> bool:
    """Half-width ! and ? inside a name or address (Yahoo!ニュース, /?q=1) and the decimal ．of ３．５ end nothing."""
    before, after = line[mark.start() - 1 : mark.start()], line[mark.end() : mark.end() + 1]
    if mark[0] in "!?":
        in_word = before.isascii() and (before.isalnum() or before == "/")
        return not in_word or not after or after.isspace() or after in _JA_CLOSING
    if mark[0] == "．":
        return not (before.isdigit() and after.isdigit())
    return True


def _split_english(line: str) -> list[str]:
    sentences, start = [], 0
    for mark in _EN_MARK.finditer(line):
        if mark[0] == "." and _is_abbreviation(line[max(start, mark.start() - 20) : mark.start()], mark[1]):
            continue
        sentences.append(line[start : mark.end()].strip())
        start = mark.end()
    sentences.append(line[start:].strip())
    return sentences


def _is_abbreviation(before: str, next_character: str) -> bool:
    found = _EN_WORD_BEFORE.search(before)
    word = found[0] if found else ""
    if word.lower() in _EN_ABBREVIATIONS or (next_character.isdigit() and word.lower() in _EN_BEFORE_NUMBERS):
        return True
    # Initials and acronyms: J. Smith, U.S. Army, but not "vitamin C." before a number or a lone "I."
    return (len(word) == 1 and word.isupper() and word != "I") or re.fullmatch(r"(?:[A-Z]\.)+[A-Z]", word) is not None


def best_cut(text: str, start: int, stop: int) -> int:
    """Where to end the piece of `text` from `start` that may reach `stop`: the last paragraph end, line end, sentence
    end or space in its second half, else `stop` itself, moved back so that a base keeps its combining marks."""
    if stop >= len(text):
        return len(text)
    middle = start + (stop - start) // 2
    for separators in (("\n\n",), ("\n",), ("。", "！", "？", "。」", "! ", "? ", ". "), (" ", "　", "、", "\t")):
        ends = [found + len(mark) for mark in separators if (found := text.rfind(mark, middle, stop)) >= 0]
        if ends:
            return max(ends)
    for cut in range(stop, max(start, stop - 16), -1):
        if not _joins_previous(text[cut]) and text[cut - 1] != "\u200d":
            return cut
    return stop


def _joins_previous(character: str) -> bool:
    """Combining marks such as U+3099, variation selectors, and the joiner inside emoji."""
    return unicodedata.combining(character) != 0 or character == "\u200d" or "\ufe00" <= character <= "\ufe0f"


def overlapping_pieces(text: str, max_characters: int, shared: int) -> list[str]:
    """Pieces of at most `max_characters` of which each begins with the last `shared` characters of the one before: what is
    `shared` + 1 characters long and lies in `text` lies in exactly one of them."""
    assert max_characters > shared, (max_characters, shared)
    step = max_characters - shared
    return [text[start : start + max_characters] for start in range(0, max(len(text) - shared, 1), step)]


def split_long_line(text: str, max_bytes: int) -> list[str]:
    """Pieces of at most `max_bytes` UTF-8 bytes that join to exactly `text`; vocabulary trainers drop longer lines."""
    assert max_bytes >= 4, max_bytes
    pieces, start = [], 0
    while start < len(text):
        window = text[start : start + max_bytes].encode()
        fits = len(window[:max_bytes].decode(errors="ignore"))
        stop = best_cut(text, start, start + fits)
        pieces.append(text[start:stop])
        start = stop
    return pieces
