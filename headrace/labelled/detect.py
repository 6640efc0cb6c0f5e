"""A file's name and beginning -> the format of its rows, and why we think so."""

import re
from pathlib import Path

from headrace.errors import InputError
from headrace.labelled.conll import DOCUMENT_START, columns_of, is_tag
from headrace.text.encodings import resolve_encoding
from headrace.text.files import DETECTION_BYTES, open_bytes

_BY_NAME = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".conll": "conll", ".iob": "conll", ".iob2": "conll",
            ".bio": "conll"}  # fmt: skip
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_SQUAD = re.compile(r'"data"\s*:\s*\[\s*\{.*?"(paragraphs|context|qas)"\s*:', re.DOTALL)


def detect_format(path: Path, encoding: str = "auto") -> tuple[str, str]:
    """(format, reason). Names whose format is certain decide; .json, .tsv, .txt and others are looked into."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    while suffixes and suffixes[-1] in _COMPRESSED:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    if suffix in _BY_NAME:
        return _BY_NAME[suffix], f"its name ends in {suffix}"
    with open_bytes(path) as reader:
        head = reader.read(DETECTION_BYTES)
    text = head.decode(resolve_encoding(path, encoding, head, "data"), "replace").lstrip("\ufeff \t\r\n")
    if not text:
        raise InputError(f"{path} is empty; leave it out.")
    if text[0] == "[" and re.match(r"\[\s*[{\]]", text):
        return "json", "it begins with a JSON list of objects"
    if text[0] == "{":
        if _SQUAD.search(text):
            return "squad", "it is a JSON object with data and paragraphs"
        if re.match(r'\{\s*"data"\s*:\s*\[', text):
            return "json", "it is a JSON object with a list named data"
        return "jsonl", "it begins with a JSON object"
    lines = text.split("\n")
    if len(head) == DETECTION_BYTES:
        lines.pop()  # it may be cut
    lines = [line.rstrip("\r") for line in lines if line.strip()]
    if _is_conll(lines):
        return "conll", "every line ends in a tag such as O or B-"
    if "\t" in lines[0]:
        return "tsv", "its first line has tabs"
    if "," in lines[0]:
        return "csv", "its first line has commas"
    raise InputError(
        f"{path}:1: {lines[0][:60]!r} begins no labelled data we know: JSON, a table with tabs or commas, or CoNLL "
        "columns; set data.format if it is one of them."
    )


def _is_conll(lines: list[str]) -> bool:
    rows = [columns_of(line) for line in lines if not line.startswith("# ")]
    rows = [columns for columns in rows if columns[0] != DOCUMENT_START]
    return bool(rows) and all(len(columns) > 1 and is_tag(columns[-1]) for columns in rows)
