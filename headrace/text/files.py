"""The user's files in, numbered lines of text out, streamed: memory grows with neither the file nor its longest line.

    expand_paths -> ByteReader (gzip, bzip2, xz, zstd by magic bytes) -> encoding by BOM and first bytes -> iter_lines

Only "\\n" ends a line and one "\\r" before it is dropped: U+2028, VT, FF and a lone "\\r" stay inside their line, so
numbers agree with `wc -l`. Other encodings are turned into UTF-8 on the way, so lines are cut and bytes judged in one
place.
"""

import bz2
import codecs
import gzip
import lzma
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headrace.errors import InputError, MissingExtraError, UserError
from headrace.text.encodings import resolve_encoding
from headrace.text.sentences import best_cut

CHUNK_BYTES = 1 << 20
PIECE_CHARACTERS = 1 << 20
"""A longer line is delivered in pieces of at most this."""
DETECTION_BYTES = 1 << 20
ERRORS = ("strict", "replace", "skip")

NULS, SKIPPED, REPLACED = (
    "NUL characters removed",
    "lines with invalid bytes skipped",
    "lines with invalid bytes replaced",
)


class Line(NamedTuple):
    number: int
    text: str
    ends: bool
    """False when the next Line continues this one."""


def expand_paths(inputs: str | Path | Iterable[str | Path]) -> list[Path]:
    """The files meant by a file, a folder (recursive), a glob or a list of them: sorted, each once, without hidden
    ones."""
    if isinstance(inputs, str | Path):
        inputs = [inputs]
    found = {}
    for given in inputs:
        path = Path(given).expanduser()
        if path.is_file():
            matches = [path]
        elif path.is_dir():
            matches = [file for file in path.rglob("*") if not _is_hidden(file.relative_to(path))]
        else:
            matches = _glob(path)
        files = [file for file in matches if file.is_file()]
        if not files:
            raise InputError(_nothing_matches(given, path))
        found |= {file.resolve(): file for file in files}
    if not found:
        raise InputError("The list of input files is empty; name a file, a folder or a pattern such as data/*.txt.gz.")
    return sorted(found.values())


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _glob(pattern: Path) -> list[Path]:
    root = Path(pattern.anchor)
    relative = str(pattern.relative_to(root))
    if not any(character in relative for character in "*?["):
        return []
    try:
        return [file for file in root.glob(relative) if not file.name.startswith(".")]
    except ValueError as error:
        raise InputError(f"{pattern} is not a pattern this system understands: {error}") from error


def _nothing_matches(given: str | Path, path: Path) -> str:
    if path.is_dir():
        return f"{given} is a folder without any file to read (hidden files are left out)."
    if path.exists():
        return f"{given} is not a regular file; name a file, a folder or a pattern."
    folder = next(parent for parent in [*path.parents, Path()] if parent.is_dir())
    names = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{given} matches no file; {folder.resolve()} holds {listed or 'nothing'}."


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class _ZstdStream:
    """zstandard's own stream reader takes a truncated file for a complete one, so frames are followed here."""

    INPUT_BYTES = 2048  # a block of 128 KiB may take 4 bytes, so this bounds what one call can return to 64 MiB

    def __init__(self, file: Any):
        try:
            import zstandard
        except ImportError as error:
            raise MissingExtraError("Reading zstd files", "zstandard", "zstd") from error
        self._file, self._frame, self._compressed, self._ready, self._num_taken = file, None, b"", b"", 0
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 31)  # `zstd --long=31` is common for dumps
        self.failure = zstandard.ZstdError

    def read(self, size: int = -1) -> bytes:
        while self._num_taken == len(self._ready):
            if not self._compressed:
                self._compressed = self._file.read(self.INPUT_BYTES)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError
                return b""
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                self._ready, self._num_taken = self._frame.decompress(self._compressed), 0
            except self.failure as error:
                raise OSError(str(error)) from error
            self._compressed = b""
            if self._frame.eof:
                self._compressed, self._frame = self._frame.unused_data, None
        data = self._ready[self._num_taken : self._num_taken + size]
        self._num_taken += len(data)
        return data


def _compression_of(head: bytes) -> str | None:
    if head[:3] == b"\x1f\x8b\x08":
        return "gzip"
    if head[:3] == b"BZh" and head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):
        return "bzip2"
    if head[:6] == b"\xfd7zXZ\x00":
        return "xz"
    # A zstd file may begin with a skippable frame, 0x184D2A50 to 5F.
    if head[:4] == b"\x28\xb5\x2f\xfd" or (head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F):
        return "zstd"
    return None


class ByteReader:
    """The decompressed bytes of one file, front to back. Bytes before damage are delivered before the error is
    raised."""

    def __init__(self, path: Path):
        self.path = path
        self._newlines = 0
        self._failure: BaseException | None = None
        try:
            self._file = path.open("rb")
        except OSError as error:
            raise InputError(f"{path} cannot be opened: {error.strerror}.") from error
        self.compression = _compression_of(self._file.read(10))
        self._file.seek(0)
        self._stream: _Readable = self._file
        match self.compression:
            case "gzip":
                self._stream = gzip.GzipFile(fileobj=self._file)
            case "bzip2":
                self._stream = bz2.BZ2File(self._file)
            case "xz":
                self._stream = lzma.LZMAFile(self._file)  # noqa: SIM115 - it lives as long as the reader
            case "zstd":
                try:
                    self._stream = _ZstdStream(self._file)
                except MissingExtraError:
                    self._file.close()
                    raise

    def read(self, size: int = CHUNK_BYTES) -> bytes:
        """`size` bytes, fewer only at the end of the file."""
        if self._failure is not None:
            raise self._failure
        parts, missing = [], size
        read_some = getattr(self._stream, "read1", self._stream.read)
        try:
            while missing and (part := read_some(missing)):
                parts.append(part)
                missing -= len(part)
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            self._failure = error  # kept until what came before it is delivered
        data = b"".join(parts)
        if self.compression is not None:
            self._newlines += data.count(b"\n")
        if self._failure is not None:
            self._failure = self._damaged(self._failure)
            if not data:
                raise self._failure
        return data

    def _damaged(self, error: BaseException) -> InputError:
        where = f"{self.path}:{self._newlines + 1}"
        if self.compression is None:
            return InputError(f"{self.path} cannot be read to its end: {error}.")
        reason = "stops in the middle (truncated)" if isinstance(error, EOFError) else f"is damaged ({error})"
        return InputError(f"{where}: the {self.compression} data {reason}; copy or download the file again.")

    def chunks(self) -> Iterator[bytes]:
        while chunk := self.read():
            yield chunk

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


def open_bytes(path: str | Path) -> ByteReader:
    return ByteReader(Path(path))


def iter_lines(
    path: str | Path,
    encoding: str = "auto",
    errors: str = "strict",
    counts: Counter | None = None,
    section: str = "text",
) -> Iterator[Line]:
    """The lines of a file, numbered from 1; one over PIECE_CHARACTERS comes in pieces of which only the last `ends`.

    `errors`: strict raises an InputError at invalid bytes, replace puts U+FFFD, skip drops the line (of a line in
    pieces, the piece). What was removed or changed is added to `counts`."""
    if errors not in ERRORS:
        raise UserError(f"text.invalid_bytes = {errors} is not allowed; use {', '.join(ERRORS)}.")
    with open_bytes(path) as reader:
        prefix = reader.read(DETECTION_BYTES)
        name = resolve_encoding(reader.path, encoding, prefix, section)
        judge = _Judge(reader.path, name, errors, Counter() if counts is None else counts, section)
        chunks = _with_first(prefix, reader)
        if name not in ("utf-8", "utf-8-sig", "ascii"):
            chunks = _to_utf8(chunks, name)
        yield from _cut_lines(chunks, judge)


def _with_first(prefix: bytes, reader: ByteReader) -> Iterator[bytes]:
    yield prefix
    yield from reader.chunks()


def _to_utf8(chunks: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Undecodable bytes become lone surrogates, hence invalid UTF-8 in the same line, and meet the policy there."""
    codecs.register_error("headrace.escape", _escape)
    decoder = codecs.getincrementaldecoder(encoding)("headrace.escape")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "surrogatepass")
    yield decoder.decode(b"", True).encode("utf-8", "surrogatepass")


def _escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "".join(chr(0xDC00 + byte) for byte in error.object[error.start : error.end]), error.end


class _Judge:
    """Decodes UTF-8 and applies the policy for invalid bytes; None means the text is dropped."""

    def __init__(self, path: Path, encoding: str, errors: str, counts: Counter, section: str):
        self.path, self.encoding, self.errors, self.counts, self.section = path, encoding, errors, counts, section

    def decode(self, raw: bytes, number: int, num_bytes_before: int = 0) -> str | None:
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            if self.errors == "strict":
                raise self._refusal(raw, error, number, num_bytes_before) from error
        if self.errors == "skip":
            self.counts[SKIPPED] += 1
            return None
        self.counts[REPLACED] += 1
        if self.encoding.startswith("utf-8"):
            return raw.decode(errors="replace")
        text = raw.decode("utf-8", "surrogatepass")
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)

    def _refusal(self, raw: bytes, error: UnicodeDecodeError, number: int, num_bytes_before: int) -> InputError:
        offset, found = num_bytes_before + error.start, raw[error.start]
        if not self.encoding.startswith(("utf-8", "ascii")):  # back from our UTF-8 to the bytes of the file
            before = raw[: error.start].decode("utf-8", "surrogatepass")
            bom_bytes = len("".encode(self.encoding))
            offset = num_bytes_before + len(before.encode(self.encoding)) - bom_bytes
            found = ord(raw[error.start :].decode("utf-8", "surrogatepass")[0]) - 0xDC00
        return InputError(
            f"{self.path}:{number}: byte {offset} of the line (0x{found:02x}) is not valid {self.encoding}; "
            f"set {self.section}.encoding to the file's real encoding"
            + (", or text.invalid_bytes to replace or skip." if self.section == "text" else ".")
        )


def _cut_lines(chunks: Iterable[bytes], judge: _Judge) -> Iterator[Line]:
    """`pending` holds the bytes after the last newline, at most a chunk and a piece: a long line leaves it in
    pieces."""
    number, pending, num_bytes_delivered, at_start = 1, b"", 0, True
    for chunk in chunks:
        if at_start and chunk:
            chunk, at_start = chunk.removeprefix(codecs.BOM_UTF8), False
        if b"\0" in chunk:
            judge.counts[NULS] += chunk.count(0)
            chunk = chunk.replace(b"\0", b"")
        cut = chunk.rfind(b"\n")
        if cut < 0:
            pending += chunk
        else:
            block, pending = pending + chunk[:cut], chunk[cut + 1 :]
            yield from _lines_of(block, number, num_bytes_delivered, judge)
            number, num_bytes_delivered = number + block.count(b"\n") + 1, 0
        while len(pending) > PIECE_CHARACTERS:
            num_bytes, text = _cut_piece(pending, number, num_bytes_delivered, judge)
            pending = pending[num_bytes:]
            num_bytes_delivered += num_bytes
            if text:
                yield Line(number, text, False)
    if pending or num_bytes_delivered:
        yield from _lines_of(pending, number, num_bytes_delivered, judge)


def _cut_piece(pending: bytes, number: int, num_bytes_before: int, judge: _Judge) -> tuple[int, str]:
    """How many bytes the next piece takes, and its text: at most PIECE_CHARACTERS bytes, hence characters."""
    stop = PIECE_CHARACTERS
    while stop > PIECE_CHARACTERS - 4 and pending[stop] & 0xC0 == 0x80:  # back to the first byte of a character
        stop -= 1
    text = judge.decode(pending[:stop], number, num_bytes_before)
    if text is None:
        return stop, ""
    cut = len(text)
    if len(text.encode()) == stop:  # else characters were replaced, and no place in the text can be found in the bytes
        cut = best_cut(text, 0, len(text) - 1)
    if text[cut - 1] == "\r":  # it may belong to a "\r\n" whose second half is still to come
        cut -= 1
    return stop - len(text[cut:].encode()), text[:cut]


def _lines_of(block: bytes, number: int, num_bytes_before: int, judge: _Judge) -> Iterator[Line]:
    """The lines of `block`, which lacks its last newline; decoded at once, line by line only to find invalid bytes."""
    try:
        texts: Iterable[str | None] = block.decode().split("\n")
    except UnicodeDecodeError:
        raws = block.split(b"\n")
        texts = (judge.decode(raw, number + index, 0 if index else num_bytes_before) for index, raw in enumerate(raws))
    for index, text in enumerate(texts, number):
        if text is None:
            if num_bytes_before and index == number:
                yield Line(index, "", True)  # the pieces before it must end
            continue
        if text.endswith("\r"):
            text = text[:-1]
        if len(text) > PIECE_CHARACTERS:
            start = 0
            while len(text) - start > PIECE_CHARACTERS:
                stop = best_cut(text, start, start + PIECE_CHARACTERS)
                yield Line(index, text[start:stop], False)
                start = stop
            text = text[start:]
        yield Line(index, text, True)
