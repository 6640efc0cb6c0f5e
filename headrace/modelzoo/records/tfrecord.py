"""TFRecord files: a row of byte strings, each framed by its length and two checksums.

    uint64 length | uint32 masked CRC-32C of the length | payload | uint32 masked CRC-32C of the payload   little-endian

Both checksums are always compared. Without the one of the length, a flipped bit there would cost a read of up to 2^64
bytes; without the other, a damaged record would train. Source: tensorflow/core/lib/io/record_writer.h.
"""

import gzip
import os
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import InputError, MissingExtraError, UserError

HEADER_BYTES, FOOTER_BYTES = 12, 4
MAX_PAYLOAD_BYTES = 1 << 28
"""A record above this is refused: the largest the Model Zoo's tools write have some 100 kB."""

_BUFFER_BYTES = 1 << 20
_MASK_DELTA = 0xA282EAD8
_LENGTH, _CRC = struct.Struct("<Q"), struct.Struct("<I")
_GZIP_MAGIC = b"\x1f\x8b\x08"
_REMEDY = "copy the file again, or make it anew"


class Frame(NamedTuple):
    """One record where it was found."""

    number: int  # in its file, from 0
    offset: int  # of its first byte, in the uncompressed file
    payload: bytes


@cache
def crc32c() -> Callable[[bytes], int]:
    """CRC-32C of bytes; raises MissingExtraError when its package is not installed."""
    try:
        import google_crc32c
    except ImportError as error:
        raise MissingExtraError("Reading and writing TFRecord files", "google-crc32c", "modelzoo") from error
    return google_crc32c.value


def masked_crc(data: bytes) -> int:
    """The checksum as TFRecord files store it: rotated right by 15 bits and shifted by a constant, modulo 2^32."""
    return _masked(crc32c()(data))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF


def frame(payload: bytes) -> bytes:
    """A payload with its length and checksums, as it stands in a file."""
    length = _LENGTH.pack(len(payload))
    return b"".join((length, _CRC.pack(masked_crc(length)), payload, _CRC.pack(masked_crc(payload))))


def write_tfrecords(path: Path, examples: Iterable[bytes]) -> int:
    """Write serialized examples to a TFRecord file, compressed when its name ends in `.gz`; returns how many.

    The file is written aside, flushed and renamed in, so it is whole or absent. The examples are taken one at a time.
    Raises UserError when the file cannot be written; what the examples raise passes through."""
    aside = path.with_name(path.name + ".tmp")
    count = 0
    try:
        with aside.open("wb", buffering=_BUFFER_BYTES) as raw:
            file = gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) if path.suffix == ".gz" else raw
            for payload in examples:
                file.write(frame(payload))
                count += 1
            if file is not raw:
                file.close()
            raw.flush()
            os.fsync(raw.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); free space or choose another folder, then run the same "
            f"command again"
        ) from None
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    return count


def read_tfrecords(path: Path) -> Iterator[Frame]:
    """The records of a TFRecord file in order, gzip or not; memory holds one record and a buffer.

    Raises InputError at the first record that is not whole, naming file, record and byte offset, after those before it
    were delivered. A file without records delivers none."""
    try:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            if is_gzip(path):
                with gzip.GzipFile(fileobj=file) as unpacked:
                    yield from _frames(path, unpacked)
            else:
                yield from _frames(path, file)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror or error})") from None


def is_gzip(path: Path) -> bool:
    """Whether a file is gzip by its first bytes, and no TFRecord file whose first length looks like that."""
    with path.open("rb") as file:
        head = file.read(HEADER_BYTES)
    return head.startswith(_GZIP_MAGIC) and _payload_bytes(head) is None


def _payload_bytes(header: bytes) -> int | None:
    """The length that a header states; None when its checksum denies it."""
    if len(header) < HEADER_BYTES or _CRC.unpack_from(header, 8)[0] != masked_crc(header[:8]):
        return None
    return _LENGTH.unpack_from(header)[0]


def _frames(path: Path, file: Any) -> Iterator[Frame]:
    number = offset = 0
    try:
        while header := file.read(HEADER_BYTES):
            size = _checked_size(path, number, offset, header)
            rest = _read(file, size + FOOTER_BYTES)
            yield Frame(number, offset, _checked_payload(path, number, offset, rest, size))
            number += 1
            offset += HEADER_BYTES + size + FOOTER_BYTES
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, number, offset, f"the gzip stream is damaged there ({error})") from None


def _read(file: Any, size: int) -> bytes:
    """At most `size` bytes; takes no more memory than there are bytes left in the file."""
    if size <= _BUFFER_BYTES:
        return file.read(size)
    pieces = []
    while size and (piece := file.read(min(size, _BUFFER_BYTES))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _checked_size(path: Path, number: int, offset: int, header: bytes) -> int:
    """The payload's length, as the header states and its checksum confirms. Raises InputError."""
    if len(header) < HEADER_BYTES:
        raise damaged(
            path, number, offset, f"the file ends after {len(header)} of the {HEADER_BYTES} bytes of its header"
        )
    size = _payload_bytes(header)
    if size is None and number == 0:
        raise damaged(
            path, number, offset, "the checksum of its length does not fit; is this a TFRecord file, gzip or plain?"
        )
    if size is None:
        raise damaged(path, number, offset, "the checksum of its length does not fit")
    if size > MAX_PAYLOAD_BYTES:
        raise damaged(path, number, offset, f"it claims {size:,} bytes, and {MAX_PAYLOAD_BYTES:,} are allowed")
    return size


def _checked_payload(path: Path, number: int, offset: int, rest: bytes, size: int) -> bytes:
    """The payload of a record without its footer, whose checksum it fits. Raises InputError."""
    if len(rest) < size + FOOTER_BYTES:
        wanted = f"{HEADER_BYTES + size + FOOTER_BYTES:,}"
        raise damaged(path, number, offset, f"the file ends after {HEADER_BYTES + len(rest):,} of its {wanted} bytes")
    payload = rest[:size]
    if _CRC.unpack_from(rest, size)[0] != masked_crc(payload):
        raise damaged(path, number, offset, "the checksum of its payload does not fit")
    return payload


def damaged(path: Path, number: int, offset: int, reason: str) -> InputError:
    """What is wrong with a record, where it is, how many are whole before it, and what to do."""
    before = {0: "no record before it", 1: "record 0 before it is whole"}.get(
        number, f"records 0 to {number - 1} before it are whole"
    )
    return InputError(f"{path}: record {number} at byte {offset:,} is damaged: {reason} ({before}); {_REMEDY}")


def record_offsets(path: Path, *, check_payloads: bool = True, name: Path | None = None) -> np.ndarray:
    """Where the n records of an uncompressed file begin, and where the last one ends, int64 (n + 1,).

    Compares every checksum, or those of the lengths only, then skipping from header to header. Raises InputError as
    `read_tfrecords` does, naming `name` for a file that is a temporary copy."""
    offsets = array("q", [0])
    if check_payloads:
        with path.open("rb", buffering=_BUFFER_BYTES) as file:
            for found in _frames(name or path, file):
                offsets.append(found.offset + HEADER_BYTES + len(found.payload) + FOOTER_BYTES)
        return np.array(offsets, np.int64)
    with path.open("rb", buffering=0) as file:
        path = name or path
        end = os.fstat(file.fileno()).st_size
        at = number = 0
        while header := os.pread(file.fileno(), HEADER_BYTES, at):
            size = _checked_size(path, number, at, header)
            after = at + HEADER_BYTES + size + FOOTER_BYTES
            if after > end:
                raise damaged(path, number, at, f"the file ends after {end - at:,} of its {after - at:,} bytes")
            offsets.append(after)
            number, at = number + 1, after
    return np.array(offsets, np.int64)


def read_at(path: Path, descriptor: int, offsets: np.ndarray, number: int) -> bytes:
    """The payload of one record of an open uncompressed file, checked again. Raises InputError."""
    offset, after = int(offsets[number]), int(offsets[number + 1])
    framed = os.pread(descriptor, after - offset, offset)
    size = after - offset - HEADER_BYTES - FOOTER_BYTES
    if framed[:8] != _LENGTH.pack(size):
        raise damaged(path, number, offset, "the file is another one than when it was opened")
    return _checked_payload(path, number, offset, framed[HEADER_BYTES:], size)
