"""CoNLL columns -> sentences with IOB2 tags.

token<TAB>...<TAB>tag      blank line = end of the sentence, "# ..." before a sentence = comment
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from headrace.errors import InputError
from headrace.labelled.row import Row
from headrace.text.files import iter_lines

DOCUMENT_START = "-DOCSTART-"
_TAG = re.compile(r"O|[BIESLUM]-\S(.*\S)?")
_INSIDE, _END = "IMEL", "ELSU"  # of any scheme: may go on with an entity; ends one


def columns_of(line: str) -> list[str]:
    """Split at tabs where there are any, else at runs of spaces (only ASCII ones: U+3000 may be a token)."""
    return line.split("\t") if "\t" in line else [column for column in line.split(" ") if column]


def is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def to_iob2(tags: Sequence[str]) -> list[str]:
    """Tags of IOB1, IOB2, BIOES (BIOLU, BMES) as IOB2. An inside tag with nothing of its type before it begins an
    entity, as conlleval has it."""
    changed, previous = [], "O"
    for tag in tags:
        if tag == "O":
            changed.append(tag)
        else:
            goes_on = tag[0] in _INSIDE and previous[0] not in _END and previous[2:] == tag[2:]
            changed.append(("I-" if goes_on else "B-") + tag[2:])
        previous = tag
    return changed


def read_conll(path: Path, encoding: str = "auto") -> Iterator[Row]:
    """{"tokens": [...], "tags": [...]} a sentence: the first and the last column. -DOCSTART- lines are left out."""
    tokens: list[str] = []
    tags: list[str] = []
    first_line = num_columns = 0
    for line in iter_lines(path, encoding, section="data"):
        columns = columns_of(line.text)
        if not line.text.strip() or columns[0] == DOCUMENT_START:
            if tokens:
                yield Row({"tokens": tokens, "tags": to_iob2(tags)}, f"{path}:{first_line}")
                tokens, tags = [], []
            continue
        if not tokens and line.text.startswith("# "):
            continue
        num_columns = num_columns or len(columns)
        _check(columns, num_columns, f"{path}:{line.number}")
        if not tokens:
            first_line = line.number
        tokens.append(columns[0])
        tags.append(columns[-1])
    if tokens:
        yield Row({"tokens": tokens, "tags": to_iob2(tags)}, f"{path}:{first_line}")


def _check(columns: list[str], num_columns: int, source: str) -> None:
    if len(columns) < 2:
        raise InputError(f"{source}: {columns[0]!r} is one column; a line holds a token and, last, its tag.")
    if len(columns) != num_columns:
        raise InputError(f"{source}: {len(columns)} columns where the lines before have {num_columns}.")
    if not columns[0].strip():
        raise InputError(f"{source}: the first column, the token, is empty.")
    if not is_tag(columns[-1]):
        raise InputError(
            f"{source}: {columns[-1]!r}, the last column, is no tag; use O, B-TYPE or I-TYPE (or BIOES: E-TYPE, S-TYPE)."
        )
