"""Metadata files -> the input files in the order they are used -> chunks of text for the workers.

A chunk holds about CHUNK_CHARACTERS, whatever the size of files and documents: a long document goes on in the next
chunk. What chunks hold depends on the input alone.
"""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import InputError, UserError
from headrace.modelzoo.create.flags import Settings
from headrace.text.files import iter_lines
from headrace.text.random import key

CHUNK_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Piece:
    """Lines of one document, ends of lines left out. starts: whether the document begins here."""

    starts: bool
    lines: list[str]


@dataclass(frozen=True)
class Chunk:
    """pass_number: which of the passes of --split_num files it belongs to."""

    number: int
    pass_number: int
    pieces: list[Piece]
    num_bytes: int  # of its text in UTF-8


def input_files(settings: Settings) -> list[Path]:
    """All listed files, shuffled by the seed; raises InputError naming metadata file and line."""
    found: list[Path] = []
    for metadata in settings.metadata_files:
        path = Path(metadata)
        if not path.is_file():
            raise UserError(f"--metadata_files {metadata}: no such file")
        for line in iter_lines(path):
            text = line.text.strip()
            if not text:
                continue
            file = Path(settings.input_files_prefix) / text
            if not file.is_file():
                what = "is a folder" if file.is_dir() else "does not exist"
                hint = "" if settings.input_files_prefix else "; paths may be made relative to --input_files_prefix"
                raise InputError(f"{metadata}:{line.number}: the input file {file} {what}{hint}")
            found.append(file)
    if not found:
        raise UserError(
            f"--metadata_files {' '.join(settings.metadata_files)}: no input file is listed, one path a line"
        )
    random.Random(key("files", settings.seed)).shuffle(found)
    return found


def num_passes(num_files: int, split_num: int) -> int:
    return 1 if split_num <= 0 else -(-num_files // split_num)


def chunks(files: list[Path], settings: Settings) -> Iterator[Chunk]:
    """The text of all files, pass by pass."""
    split_num = settings.split_num if settings.pairs and settings.split_num > 0 else len(files)
    number = 0
    for pass_number in range(num_passes(len(files), split_num)):
        of_pass = files[pass_number * split_num : (pass_number + 1) * split_num]
        pieces: list[Piece] = []
        characters = num_bytes = 0
        for starts, lines in _pieces(of_pass, settings):
            pieces.append(Piece(starts, lines))
            characters += sum(map(len, lines)) + len(lines)
            num_bytes += sum(len(line) if line.isascii() else len(line.encode()) for line in lines) + len(lines)
            if characters >= CHUNK_CHARACTERS:
                yield Chunk(number, pass_number, pieces, num_bytes)
                number, pieces, characters, num_bytes = number + 1, [], 0, 0
        if pieces:
            yield Chunk(number, pass_number, pieces, num_bytes)
            number += 1


def total_bytes(files: list[Path]) -> int | None:
    """Of all files, to measure progress against; None when some are compressed."""
    if any(file.suffix in (".gz", ".bz2", ".xz", ".zst") for file in files):
        return None
    return sum(file.stat().st_size for file in files)


def files_sha256(files: list[Path]) -> str:
    """Of paths, sizes and times of change: whether the input is still the same."""
    digest = hashlib.sha256()
    for file in sorted(files):
        facts = file.stat()
        digest.update(f"{file}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _pieces(files: list[Path], settings: Settings) -> Iterator[tuple[bool, list[str]]]:
    """(document begins, lines): all of a document, or as many lines of it as make a chunk."""
    for file in files:
        starts, lines, characters = True, [], 0
        for line in _lines_or_boundaries(file, settings):
            if line is None:
                if lines:
                    yield starts, lines
                starts, lines, characters = True, [], 0
                continue
            lines.append(line)
            characters += len(line) + 1
            if characters >= CHUNK_CHARACTERS:
                yield starts, lines
                starts, lines, characters = False, [], 0
        if lines:
            yield starts, lines


def _lines_or_boundaries(file: Path, settings: Settings) -> Iterator[str | None]:
    """Lines that are not empty, and None between documents."""
    lines = _lines(file)
    if settings.multiple_docs_in_single_file:
        return (line for line in separated(lines, settings.multiple_docs_separator) if line != "")
    return (line for line in lines if line)


def _lines(file: Path) -> Iterator[str]:
    for line in iter_lines(file):
        if "\r" in line.text:  # what Python's text mode takes for the end of a line
            yield from line.text.split("\r")
        else:
            yield line.text


def separated(lines: Iterator[str], separator: str) -> Iterator[str | None]:
    """A document ends where a line end is followed by `separator`, whose own line ends count; a separator that ends
    in the middle of a line leaves the rest of it to the next document.

    The default separator is a line end, so an empty line separates."""
    *whole, last = separator.split("\n")
    ahead: list[str] = []
    ended = False
    while True:
        while len(ahead) <= len(whole) and not ended:
            line = next(lines, None)
            if line is None:
                ended = True
            else:
                ahead.append(line)
        if not ahead:
            return
        if ahead[: len(whole)] == whole:
            after = ahead[len(whole) :]
            if after[0].startswith(last) if after else not last:
                yield None
                ahead = []
                if after:
                    yield after[0][len(last) :]
                continue
        yield ahead.pop(0)
