"""Files of labelled examples in, rows out.

    expand_paths -> detect_format (by name, then by content) -> FORMATS[name](path, encoding) -> Row(fields, "file:line")

jsonl, csv, tsv and conll are streamed; json and squad hold one file at a time.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.errors import InputError, UserError
from headrace.labelled.conll import read_conll
from headrace.labelled.detect import detect_format
from headrace.labelled.json_rows import read_json, read_jsonl
from headrace.labelled.row import Row as Row
from headrace.labelled.squad import read_squad
from headrace.labelled.tables import read_csv, read_tsv
from headrace.progress import say
from headrace.text.files import expand_paths

FORMATS: dict[str, Callable[[Path, str], Iterator[Row]]] = {
    "jsonl": read_jsonl,
    "json": read_json,
    "csv": read_csv,
    "tsv": read_tsv,
    "conll": read_conll,
    "squad": read_squad,
}


def read_rows(paths: str | Sequence[str], format: str = "auto", encoding: str = "auto") -> Iterator[Row]:
    """The rows of all files in order. Names and format are checked at the call, the content as it is read.

    format: auto (said once a kind of file) or one of FORMATS, for all files."""
    if format != "auto" and format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise UserError(f"data.format = {format} is unknown; use auto, {', '.join(FORMATS)}{hint}")
    files = expand_paths(paths)
    formats = [format] * len(files)
    if format == "auto":
        found = [detect_format(file, encoding) for file in files]
        formats = [name for name, _ in found]
        for name, reason in dict.fromkeys(found):
            alike = [file.name for file, (one, why) in zip(files, found, strict=True) if (one, why) == (name, reason)]
            say(
                f"{', '.join(alike[:3])}{f' and {len(alike) - 3} more' if len(alike) > 3 else ''}: {name}, for {reason}"
            )
    return _read_all(files, formats, encoding)


def _read_all(files: list[Path], formats: list[str], encoding: str) -> Iterator[Row]:
    for file, format in zip(files, formats, strict=True):
        empty = True
        for row in FORMATS[format](file, encoding):
            empty = False
            yield row
        if empty:
            raise InputError(f"{file} holds no rows ({format}); leave it out, or set data.format if it has another.")
