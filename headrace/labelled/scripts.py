"""Scripts that write no spaces between words: Chinese, Japanese, Thai, Lao, Burmese, Khmer."""

import re

UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u31a0-\u9fff\uf900-\ufaff\uff01-\uffef\U00020000-\U0003ffff]"
)
"""A character of such a script; its punctuation and full-width forms too."""


def is_unspaced(text: str) -> bool:
    """Whether more than half of its letters and digits are of such scripts."""
    letters = [character for character in text if character.isalnum()]
    return 2 * sum(UNSPACED.match(character) is not None for character in letters) > len(letters)
