"""Exact match and F1 of answers, as the evaluation script of SQuAD 2.0 defines them (Rajpurkar et al. 2018).

English and other languages with spaces, as that script: lower case, no ASCII punctuation, no a/an/the; F1 over words.
Scripts without spaces (`headrace.labelled.scripts`): NFKC, lower case, no white space and no punctuation (Unicode
categories P*); F1 over characters.
"""

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def words_of(answer: str, unspaced: bool) -> list[str]:
    """What is compared of an answer: its words, or its characters."""
    if unspaced:
        text = unicodedata.normalize("NFKC", answer).lower()
        return [c for c in text if not c.isspace() and not unicodedata.category(c).startswith("P")]
    return _ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split()


def exact_and_f1(answer: str, truths: Sequence[str], unspaced: bool) -> tuple[float, float]:
    """The best over the truths, of each; no truths = there is no answer, and "" says so."""
    given = words_of(answer, unspaced)
    wanted = [words for truth in truths if (words := words_of(truth, unspaced))] or [[]]
    return max(float(given == words) for words in wanted), max(_f1(given, words) for words in wanted)


def _f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    if not given or not wanted:
        return float(given == wanted)
    return 2 * sum((Counter(given) & Counter(wanted)).values()) / (len(given) + len(wanted))
