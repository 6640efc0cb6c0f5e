"""The beginnings of the user's files -> how documents lie in them, and why we think so."""

import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from headrace.errors import InputError
from headrace.text.encodings import resolve_encoding
from headrace.text.files import DETECTION_BYTES, open_bytes
from headrace.text.sentences import split_sentences

SAMPLED_FILES = 16


class DetectedFormat(NamedTuple):
    name: str
    reason: str


def detect_format(paths: Iterable[Path], encoding: str = "auto") -> DetectedFormat:
    """One format for all files, and why. The beginning of every file tells JSON Lines, Parquet, WikiExtractor,
    MediaWiki and FASTA apart, and files that differ are refused. For plain text, 1 MiB of up to SAMPLED_FILES is looked at:

    | blank lines between lines?       | one sentence a line | several sentences a line                       |
    |----------------------------------|---------------------|------------------------------------------------|
    | yes                              | sentence_per_line   | document_per_file, document_per_block for one  |
    | no, one file or some over 1 MiB  | document_per_line   | document_per_line                              |
    | no, several files, all small     | document_per_file   | document_per_file                              |
    """
    files = list(paths)
    kinds: dict[str, Path] = {}
    plain = []
    for file in files:
        kind = _structure_of(file, encoding)
        if kind:
            kinds.setdefault(kind, file)
        if kind == "plain text":
            plain.append(file)
    if len(kinds) > 1:
        named = ", ".join(f"{file} is {kind}" for kind, file in kinds.items())
        raise InputError(f"The input mixes formats: {named}; name only files of one, or set text.format.")
    if not kinds:
        return DetectedFormat("document_per_file", "all files are empty")
    kind, file = next(iter(kinds.items()))
    if kind != "plain text":
        return DetectedFormat(kind, f"{file.name} begins like {kind}")
    return _plain_format(plain, encoding)


def detected_encodings(paths: Iterable[Path]) -> list[str]:
    """The encodings that up to SAMPLED_FILES of the files begin with, by name."""
    files = list(paths)
    found = set()
    for file in files[:: -(-len(files) // SAMPLED_FILES)]:
        with open_bytes(file) as reader:
            found.add(resolve_encoding(file, "auto", reader.read(DETECTION_BYTES)))
    return sorted(found)


_NO_TEXT = (
    (0, b"PK\x03\x04", "a zip archive"),
    (257, b"ustar", "a tar archive"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-zip archive"),
    (0, b"%PDF-", "a PDF"),
    (0, b"\x89PNG", "a picture"),
    (0, b"\xff\xd8\xff", "a picture"),
)
_STRUCTURE_BYTES = 1 << 16


def _structure_of(path: Path, encoding: str) -> str:
    """The format that the first bytes show, "plain text" if none, "" for an empty file."""
    with open_bytes(path) as reader:
        head = reader.read(_STRUCTURE_BYTES)
    for offset, magic, description in _NO_TEXT:
        if head[offset : offset + len(magic)] == magic:
            raise InputError(f"{path} is {description}, not text; unpack or convert it, or leave it out.")
    if head.startswith(b"PAR1"):
        if reader.compression is not None:
            raise InputError(f"{path} is a Parquet file inside {reader.compression}; unpack it first.")
        return "parquet"
    text = head.decode(resolve_encoding(path, encoding, head), "replace").lstrip("\ufeff\0 \t\r\n")
    if not text:
        return "" if len(head) < _STRUCTURE_BYTES else "plain text"
    if text.startswith("<doc id="):
        return "wikiextractor"
    if text.startswith("<") and "<mediawiki" in text[:4096]:
        return "mediawiki"
    if re.match(r">[^\n]*\n[A-Za-z*.-]+\r?(\n|\Z)", text):
        return "fasta"
    if re.match(r'\[\s*\{\s*"', text):
        raise InputError(f"{path}:1: a JSON array; write one JSON object a line (JSON Lines), or set text.format.")
    if re.match(r'\{\s*"', text):
        first_line, newline, _ = text.partition("\n")
        try:
            return "jsonl" if not newline or isinstance(json.loads(first_line), dict) else "plain text"
        except ValueError as error:
            raise InputError(
                f"{path}:1: begins like JSON, but its first line is no JSON object ({error}); "
                "write one object a line (JSON Lines), or set text.format."
            ) from error
    return "plain text"


def _plain_format(files: list[Path], encoding: str) -> DetectedFormat:
    sampled = files[:: -(-len(files) // SAMPLED_FILES)]
    num_with_blanks, num_sentences, all_small = 0, [], True
    for file in sampled:
        with open_bytes(file) as reader:
            head = reader.read(DETECTION_BYTES)
        lines = head.decode(resolve_encoding(file, encoding, head), "replace").strip().split("\n")
        all_small = all_small and len(head) < DETECTION_BYTES
        num_with_blanks += any(not line or line.isspace() for line in lines)
        language = "en" if head.isascii() else "ja"
        num_sentences += [len(split_sentences(line[:2000], language)) for line in lines[:2000] if line.strip()]
    per_line = statistics.fmean(num_sentences)
    seen = f"{per_line:.1f} sentences a line" + (f" in {len(sampled)} of {len(files)} files" if len(files) > 1 else "")
    if num_with_blanks * 2 >= len(sampled):
        if per_line < 1.3:
            return DetectedFormat("sentence_per_line", f"blank lines between lines, {seen}")
        if len(files) > 1:
            return DetectedFormat("document_per_file", f"blank lines, but lines are paragraphs ({seen}), several files")
        return DetectedFormat("document_per_block", f"blank lines, and lines are paragraphs ({seen})")
    if len(files) > 1 and all_small:
        return DetectedFormat("document_per_file", f"no blank lines, {len(files)} small files")
    return DetectedFormat("document_per_line", f"no blank lines, {seen}")
