"""JSON Lines and JSON lists of objects -> rows."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.labelled.row import Row, refuse_half_pairs, shown
from headrace.text.files import iter_lines

MAX_LINE_CHARACTERS = 64 << 20
"""A JSON line or a row of a table has to be held whole."""
_SPACE = re.compile(r"[ \t\r\n]*")


def whole_lines(path: Path, encoding: str, max_characters: int = MAX_LINE_CHARACTERS) -> Iterator[tuple[int, str]]:
    """(number, text) of each line, the pieces of a long one put together again."""
    pieces, num_characters = [], 0
    for line in iter_lines(path, encoding, section="data"):
        pieces.append(line.text)
        num_characters += len(line.text)
        if num_characters > max_characters:
            limit = f"{max_characters >> 20} Mi characters"
            raise InputError(f"{path}:{line.number}: a line of over {limit}; the format holds one row a line.")
        if line.ends:
            yield line.number, "".join(pieces)
            pieces, num_characters = [], 0


def read_text(path: Path, encoding: str) -> str:
    """The whole file, its lines ending in "\\n", so that line numbers stay right."""
    return "\n".join(text for _, text in whole_lines(path, encoding, sys.maxsize))


def read_jsonl(path: Path, encoding: str = "auto") -> Iterator[Row]:
    for number, text in whole_lines(path, encoding):
        if not text or text.isspace():
            continue
        source = f"{path}:{number}"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{source}: not valid JSON ({error}); every line must hold one JSON object.") from error
        yield _object_row(value, source)


def read_json(path: Path, encoding: str = "auto") -> Iterator[Row]:
    """A list of objects, or an object that holds one as `data`; file:line is where the row's object begins."""
    text = read_text(path, encoding)
    decoder = json.JSONDecoder()
    start = _SPACE.match(text).end()  # pyright: ignore[reportOptionalMemberAccess] (it always matches)
    if opening := re.compile(r'\{\s*"data"\s*:\s*(?=\[)').match(text, start):
        start = opening.end()
    if not text.startswith("[", start):
        raise InputError(
            f"{path}:1: {shown(text[start : start + 40])} begins no JSON list of objects, as json must be."
        )
    at, line, counted = start + 1, 1, 0
    while True:
        at = _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
        line, counted = line + text.count("\n", counted, at), at
        source = f"{path}:{line}"
        if text.startswith("]", at):
            return
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{_place(path, error, source)}: not valid JSON ({_reason(error)}).") from error
        yield _object_row(value, source)
        at = _SPACE.match(text, at).end()  # pyright: ignore[reportOptionalMemberAccess]
        if text.startswith(",", at):
            at += 1
        elif not text.startswith("]", at):
            line, counted = line + text.count("\n", counted, at), at
            found = shown(text[at : at + 20]) if at < len(text) else "the end of the file"
            raise InputError(f"{path}:{line}: not valid JSON ({found} where , or ] must follow the object).")


def parse_json(path: Path, text: str) -> Any:
    """One JSON value; errors name its line."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{_place(path, error, f'{path}:1')}: not valid JSON ({_reason(error)}).") from error


def _place(path: Path, error: Exception, otherwise: str) -> str:
    return f"{path}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else otherwise


def _reason(error: Exception) -> str:
    return f"{error.msg}, column {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _object_row(value: Any, source: str) -> Row:
    if not isinstance(value, dict):
        raise InputError(f"{source}: {shown(value)} is a JSON {type(value).__name__}; each row must be an object.")
    refuse_half_pairs(value, source)
    return Row(value, source)
