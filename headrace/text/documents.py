"""Files in, documents out, streamed. What is dropped, split or changed is added to a Counter under its reason.

    detect_format -> FORMATS[name](path, options, counts) -> Document(text, "file:line", …) -> clean_document

Keys: "documents", "documents of one sentence" (all of them means that blank lines separate sentences, not documents),
"documents split", "long lines split", "empty files", every "dropped: …", and those of files.iter_lines.
counts["documents"] == 0 after reading means that the input holds no text.
"""

import difflib
import html
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from headrace.errors import InputError, MissingExtraError, UserError
from headrace.text.document import (
    DOCUMENTS,
    EMPTY,
    EMPTY_FILES,
    LONG_LINES,
    MAX_DOCUMENT_CHARACTERS,
    ONE_SENTENCE,
    SPLIT,
    ReadOptions,
    SeriesOptions,
)
from headrace.text.document import Document as Document
from headrace.text.fasta import read_fasta
from headrace.text.files import ERRORS, Line, expand_paths, iter_lines
from headrace.text.formats import detect_format
from headrace.text.mediawiki import is_disambiguation, iter_pages, strip_wikitext
from headrace.text.sentences import best_cut
from headrace.text.series import read_series

MAX_JSON_LINE_CHARACTERS = 64 << 20
"""A JSON line has to be held whole to be parsed."""


def read_documents(
    paths: str | Path | Iterable[str | Path],
    format: str = "auto",
    encoding: str = "auto",
    errors: str = "strict",
    text_field: str = "text",
    counts: Counter | None = None,
    language: str = "en",
    series: SeriesOptions | None = None,
) -> Iterator[Document]:
    """The documents of all files in order, with `counts` filled as they go. Options are checked at the call."""
    files = expand_paths(paths)
    if errors not in ERRORS:
        raise UserError(f"text.invalid_bytes = {errors} is not allowed; use {', '.join(ERRORS)}.")
    if format == "auto":
        format = detect_format(files, encoding).name
    elif format not in FORMATS:
        near = difflib.get_close_matches(format, FORMATS, n=1)
        hint = f"; did you mean {near[0]}?" if near else "."
        raise UserError(f"text.format = {format} is unknown; use auto, {', '.join(FORMATS)}{hint}")
    options = ReadOptions(encoding, errors, text_field, language, series)
    return _read_all(files, FORMATS[format], options, Counter() if counts is None else counts)


def _read_all(files: list[Path], reader: "Reader", options: ReadOptions, counts: Counter) -> Iterator[Document]:
    for file in files:
        before = counts[DOCUMENTS]
        yield from reader(file, options, counts)
        if counts[DOCUMENTS] == before:
            counts[EMPTY_FILES] += 1


def clean_document(document: Document, format: str) -> str:
    """The text to use: wikitext without its markup ("" when nothing remains), other formats as they are. Costly for
    wikitext, so it is not done while reading, but by whoever works on the document."""
    return strip_wikitext(document.text) if format == "mediawiki" else document.text


# --- one document at a time -------------------------------------------------------------------------------------------


class _Growing:
    """The document under way. At MAX_DOCUMENT_CHARACTERS it is handed out, and the rest as another."""

    def __init__(self, path: Path, counts: Counter, lines_are_sentences: bool = False):
        self.path, self.counts, self.lines_are_sentences = path, counts, lines_are_sentences
        self._parts: list[str] = []
        self._num_characters = self._num_lines = self._line_number = 0
        self._was_split = self._in_line = False

    def add(self, line: Line) -> Iterator[Document]:
        if self._parts and self._num_characters + len(line.text) > MAX_DOCUMENT_CHARACTERS:
            self.counts[SPLIT] += not self._was_split
            self._was_split = True
            yield from self._take()
        if not self._parts:
            self._line_number = line.number
        self.counts[LONG_LINES] += not line.ends and not self._in_line
        self._in_line = not line.ends
        self._parts.append(line.text)
        self._num_characters += len(line.text) + 1
        if line.ends:
            self._parts.append("\n")
            self._num_lines += 1

    def finish(self) -> Iterator[Document]:
        yield from self._take()
        self._was_split = self._in_line = False

    def _take(self) -> Iterator[Document]:
        if not self._parts:
            return
        text = "".join(self._parts).removesuffix("\n")
        if not text or text.isspace():
            self.counts[EMPTY] += 1
        else:
            self.counts[DOCUMENTS] += 1
            self.counts[ONE_SENTENCE] += self.lines_are_sentences and self._num_lines <= 1 and not self._was_split
            yield Document(text, f"{self.path}:{self._line_number}", self.lines_are_sentences)
        self._parts, self._num_characters, self._num_lines = [], 0, 0


def _whole(text: str, source: str, counts: Counter) -> Iterator[Document]:
    """A text that is in memory already, in as many documents as its length asks for."""
    if not text or text.isspace():
        counts[EMPTY] += 1
        return
    counts[SPLIT] += len(text) > MAX_DOCUMENT_CHARACTERS
    start = 0
    while start < len(text):
        stop = best_cut(text, start, start + MAX_DOCUMENT_CHARACTERS)
        counts[DOCUMENTS] += 1
        yield Document(text[start:stop], source)
        start = stop


# --- formats ----------------------------------------------------------------------------------------------------------


def _read_blocks(path: Path, options: ReadOptions, counts: Counter, lines_are_sentences: bool) -> Iterator[Document]:
    growing, in_line = _Growing(path, counts, lines_are_sentences), False
    for line in iter_lines(path, options.encoding, options.errors, counts):
        if line.ends and not in_line and (not line.text or line.text.isspace()):
            yield from growing.finish()
        else:
            yield from growing.add(line)
        in_line = not line.ends
    yield from growing.finish()


def _read_sentence_per_line(path: Path, options: ReadOptions, counts: Counter) -> Iterator[Document]:
    return _read_blocks(path, options, counts, lines_are_sentences=True)


def _read_document_per_block(path: Path, options: ReadOptions, counts: Counter) -> Iterator[Document]:
    return _read_blocks(path, options, counts, lines_are_sentences=False)


def _read_document_per_line(path: Path, options: ReadOptions, counts: Counter) -> Iterator[Document]:
    growing = _Growing(path, counts)
    for line in iter_lines(path, options.encoding, options.errors, counts):
        yield from growing.add(line)
        if line.ends:
            yield from growing.finish()
    yield from growing.finish()


def _read_document_per_file(path: Path, options: ReadOptions, counts: Counter) -> Iterator[Document]:
    growing = _Growing(path, counts)
    for line in iter_lines(path, options.encoding, options.errors, counts):
        yield from growing.add(line)
    yield from growing.finish()


def _read_jsonl(path: Path, options: ReadOptions, counts: Counter) -> Iterator[Document]:
    pieces, num_characters = [], 0
    for line in iter_lines(path, options.encoding, options.errors, counts):
        pieces.append(line.text)
        num_characters += len(line.text)
        if num_characters > MAX_JSON_LINE_CHARACTERS:
            limit = f"{MAX_JSON_LINE_CHARACTERS >> 20} Mi characters"
            raise InputError(f"{path}:{line.number}: a JSON line of over {limit}; JSON Lines holds one object a line.")
        if line.ends:
            joined, pieces, num_characters = "".join(pieces), [], 0
            if joined and not joined.isspace():
                source = f"{path}:{line.number}"
                text = _field_of(joined, options.text_field, source)
                yield from _whole(_clean_json_string(text, source, options.errors, counts), source, counts)


def _field_of(line: str, field: str, source: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: not valid JSON ({error}); every line must hold one JSON object.") from error
    if not isinstance(value, dict):
        raise InputError(f"{source}: a JSON {type(value).__name__}, not an object with a field {field!r}.")
    text = value.get(field)
    if isinstance(text, str):
        return text
    found = ", ".join(f"{name} ({type(content).__name__})" for name, content in value.items()) or "none"
    missing = f"field {field!r} is not a string" if field in value else f"there is no field {field!r}"
    raise InputError(f"{source}: {missing}; fields found: {found}; set text.text_field to the one that holds the text.")


_SURROGATE = re.compile("[\ud800-\udfff]")


def _clean_json_string(text: str, source: str, errors: str, counts: Counter) -> str:
    """JSON escapes can smuggle in what no file of text may hold: half a surrogate pair, and NUL."""
    if "\0" in text:
        counts["NUL characters removed"] += text.count("\0")
        text = text.replace("\0", "")
    if not text.isascii() and _SURROGATE.search(text):
        if errors == "strict":
            raise InputError(
                f"{source}: the text holds half a surrogate pair; set text.invalid_bytes to replace or skip."
            )
        counts["lines with invalid bytes skipped" if errors == "skip" else "lines with invalid bytes replaced"] += 1
        text = "" if errors == "skip" else _SURROGATE.sub("\ufffd", text)
    return text.replace("\r\n", "\n") if "\r" in text else text


def _read_parquet(path: Path, options: ReadOptions, counts: Counter) -> Iterator[Document]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("Reading Parquet files", "pyarrow", "parquet") from error
    column = options.text_field
    row = 0
    try:
        with parquet.ParquetFile(path, buffer_size=1 << 20) as file:
            schema = file.schema_arrow
            if column not in schema.names:
                found = ", ".join(f"{field.name} ({field.type})" for field in schema)
                raise InputError(f"{path}: there is no column {column!r}; columns found: {found}; set text.text_field.")
            for batch in file.iter_batches(batch_size=128, columns=[column]):
                values: Any = batch.column(0)
                if arrow.types.is_dictionary(values.type):
                    values = values.dictionary_decode()
                if not (arrow.types.is_string(values.type) or arrow.types.is_large_string(values.type)):
                    raise InputError(
                        f"{path}: column {column!r} holds {values.type}, not strings; set text.text_field."
                    )
                for value in values.cast(arrow.large_binary()):
                    row += 1
                    raw = value.as_py()
                    if raw is None:
                        counts["dropped: no text (null)"] += 1
                        continue
                    source = f"{path}:{row}"
                    text = raw.decode("utf-8", "surrogateescape")
                    yield from _whole(_clean_json_string(text, source, options.errors, counts), source, counts)
    except (arrow.ArrowException, OSError) as error:
        raise InputError(
            f"{path}:{row + 1}: the Parquet data is damaged ({error}); copy or download it again."
        ) from error


_DOC_START = re.compile(r'<doc id="[^"]*"[^>]*?\btitle="(.*)">\s*\Z')


def _read_wikiextractor(path: Path, options: ReadOptions, counts: Counter) -> Iterator[Document]:
    growing, title, inside = _Growing(path, counts), None, False
    for line in iter_lines(path, options.encoding, options.errors, counts):
        start = _DOC_START.match(line.text) if line.text.startswith("<doc ") else None
        if start or line.text.strip() == "</doc>":
            if start and inside:
                counts["documents without </doc>"] += 1
            yield from growing.finish()
            inside, title = start is not None, html.unescape(start[1]) if start else None
        elif not inside:
            counts["dropped: line outside <doc>"] += not (not line.text or line.text.isspace())
        elif title is not None and html.unescape(line.text.strip()) == title:
            title = None  # WikiExtractor repeats the title as the first line; it is no sentence
        else:
            title = None if line.text.strip() else title
            yield from growing.add(line._replace(text=html.unescape(line.text)) if "&" in line.text else line)
    if inside:
        counts["documents without </doc>"] += 1
    yield from growing.finish()


def _read_mediawiki(path: Path, options: ReadOptions, counts: Counter) -> Iterator[Document]:
    """Raw wikitext of the articles, whole whatever its length, as markup cannot be cut; see clean_document."""
    for page in iter_pages(path):
        if page.namespace != 0:
            counts["dropped: page is no article"] += 1
        elif page.is_redirect:
            counts["dropped: redirect"] += 1
        elif not page.wikitext or page.wikitext.isspace():
            counts[EMPTY] += 1
        elif is_disambiguation(page.wikitext):
            counts["dropped: disambiguation page"] += 1
        else:
            counts[DOCUMENTS] += 1
            yield Document(page.wikitext, f"{path}:{page.line_number}")


Reader = Callable[[Path, ReadOptions, Counter], Iterator[Document]]
FORMATS: dict[str, Reader] = {
    "sentence_per_line": _read_sentence_per_line,  # a blank line between documents
    "document_per_line": _read_document_per_line,
    "document_per_block": _read_document_per_block,  # a blank line between documents, lines are paragraphs
    "document_per_file": _read_document_per_file,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
    "wikiextractor": _read_wikiextractor,
    "mediawiki": _read_mediawiki,
    "fasta": read_fasta,
    "series": read_series,
}
