"""One slab in one safetensors file, read and written past the page cache.

    8 bytes: length of the header | JSON header, padded with spaces | data, from a multiple of 4096 bytes on

The padding is what the safetensors format allows, so any program reads such a file; data that starts on a page can move
between disk and memory directly (O_DIRECT). Where a file system refuses that, reads and writes are buffered.
"""

import errno
import json
import mmap
import os
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from headrace.errors import UserError
from headrace.store.layout import Entry

PAGE_BYTES = 4096
DTYPES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
}
SUM_BLOCK_BYTES = 16 << 10
_DIRECT = getattr(os, "O_DIRECT", 0)
_DIRECT_BLOCK_BYTES = 16 << 20


def aligned(num_bytes: int) -> Tensor:
    """New page-aligned memory, uint8 (num_bytes rounded up to pages), zeros; given back to the system when it is dropped.

    In huge pages where the system has them: a transfer that has 2 MiB to find at a time, and a product that reads weights
    through fewer addresses, took 4 to 8 % off a streamed step and 2 % off a resident one.
    """
    memory = mmap.mmap(-1, max(pages(num_bytes), 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)


def pages(num_bytes: int) -> int:
    """num_bytes rounded up to whole pages."""
    return -(-num_bytes // PAGE_BYTES) * PAGE_BYTES


def header_of(entries: Sequence[Entry], dtype: torch.dtype, suffix: str = "") -> bytes:
    """The file's first bytes, up to where the data of these entries begins."""
    tree: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for entry in entries:
        stop = start + entry.size * dtype.itemsize
        tree[entry.file_name + suffix] = {
            "dtype": DTYPES[dtype],
            "shape": list(entry.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(tree, separators=(",", ":")).encode()
    length = pages(8 + len(text)) - 8
    return length.to_bytes(8, "little") + text.ljust(length)


class SlabFile:
    """An open slab file. Offsets and lengths are bytes of data, offsets multiples of PAGE_BYTES."""

    def __init__(self, path: Path, mode: str = "r"):
        """mode: "r" to read, "w" to read and write an existing file."""
        self.path = path
        flags = os.O_RDONLY if mode == "r" else os.O_RDWR
        self.buffered = os.open(path, flags)
        try:
            self.direct = os.open(path, flags | _DIRECT)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
            self.direct = os.dup(self.buffered)
        self.data_start = 8 + int.from_bytes(os.pread(self.buffered, 8, 0), "little")
        self.data_bytes = os.fstat(self.buffered).st_size - self.data_start
        if self.data_start % PAGE_BYTES:
            self.close()
            raise UserError(f"{path}: damaged: its data begins at byte {self.data_start:,}, not on a page")

    @classmethod
    def create(cls, path: Path, header: bytes, data_bytes: int) -> "SlabFile":
        """A new file of zeros with room for all its data, so that a full disk shows here and not halfway."""
        handle = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o666)
        try:
            os.pwrite(handle, header, 0)
            if data_bytes:
                os.posix_fallocate(handle, 0, len(header) + data_bytes)
        finally:
            os.close(handle)
        return cls(path, "w")

    def read(self, offset: int, into: Tensor) -> None:
        """Fill `into`, page-aligned bytes whose memory goes on to the next page boundary."""
        view, done = _memory(into, pages(into.nbytes)), 0
        while done < into.nbytes:
            stop = min(done + _DIRECT_BLOCK_BYTES, len(view))
            count = os.preadv(self.direct, [view[done:stop]], self.data_start + offset + done)
            if not count:
                raise UserError(
                    f"{self.path}: ends at byte {offset + done:,} of its data, {into.nbytes - done:,} more expected: damaged"
                )
            done += count
            if done < into.nbytes:
                done -= done % PAGE_BYTES  # a short read: direct reads go on from a page

    def write(self, offset: int, data: Tensor) -> None:
        """Write page-aligned bytes; a part of a page at the end of the file goes through the page cache."""
        whole = data.nbytes - data.nbytes % PAGE_BYTES
        view, done = _memory(data, data.nbytes), 0
        while done < whole:
            stop = min(done + _DIRECT_BLOCK_BYTES, whole)
            done += os.pwritev(self.direct, [view[done:stop]], self.data_start + offset + done)
            done -= done % PAGE_BYTES
        while done < data.nbytes:
            done += os.pwritev(self.buffered, [view[done:]], self.data_start + offset + done)

    def close(self) -> None:
        os.close(self.direct)
        os.close(self.buffered)

    def __enter__(self) -> "SlabFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _memory(tensor: Tensor, num_bytes: int) -> memoryview:
    """The tensor's memory, to a length that may go past its end within its last page."""
    assert tensor.is_contiguous() and tensor.data_ptr() % PAGE_BYTES == 0, "direct I/O needs page-aligned memory"
    storage = tensor.untyped_storage()
    first = tensor.storage_offset() * tensor.element_size()
    whole = torch.empty(0, dtype=torch.uint8).set_(storage, first, (num_bytes,), (1,))  # pyright: ignore
    return memoryview(whole.numpy())  # pyright: ignore[reportArgumentType]


class RawFile:
    """A scratch file: pages anywhere in it, no format, nothing to keep."""

    def __init__(self, path: Path):
        self.path = path
        flags = os.O_CREAT | os.O_TRUNC | os.O_RDWR
        try:
            self.handle = os.open(path, flags | _DIRECT, 0o666)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
            self.handle = os.open(path, flags, 0o666)

    def write(self, offset: int, data: Tensor) -> None:
        """Whole pages of page-aligned memory."""
        view, done = _memory(data, data.nbytes), 0
        while done < len(view):
            stop = min(done + _DIRECT_BLOCK_BYTES, len(view))
            done += os.pwritev(self.handle, [view[done:stop]], offset + done)

    def read(self, offset: int, into: Tensor) -> None:
        view, done = _memory(into, into.nbytes), 0
        while done < len(view):
            stop = min(done + _DIRECT_BLOCK_BYTES, len(view))
            count = os.preadv(self.handle, [view[done:stop]], offset + done)
            if not count:
                raise UserError(f"{self.path}: ends at byte {offset + done:,}, {len(view) - done:,} more expected")
            done += count

    def close(self) -> None:
        os.close(self.handle)


def block_sum(data: Tensor, offset: int) -> int:
    """This part's share of a file's sum, from bytes of data at `offset`, a multiple of SUM_BLOCK_BYTES.

    sum over blocks i of 16 KiB:  (2 i + 1) x (sum of the block's 64-bit words)    modulo 2^64, the end padded with zeros
    Odd factors: no flipped byte leaves it unchanged. It runs at the speed of memory, where a hash would cost a step.
    """
    assert offset % SUM_BLOCK_BYTES == 0, f"offset = {offset:,}"
    whole = data.nbytes - data.nbytes % SUM_BLOCK_BYTES
    total = 0
    for part, first in ((data[:whole], offset), (data[whole:], offset + whole)):
        if len(part):
            if part.nbytes % SUM_BLOCK_BYTES:
                part = torch.cat([part, part.new_zeros(-part.nbytes % SUM_BLOCK_BYTES)])
            sums = part.view(torch.int64).view(-1, SUM_BLOCK_BYTES // 8).sum(1)
            factors = 2 * (torch.arange(len(sums)) + first // SUM_BLOCK_BYTES) + 1
            total += int((sums * factors).sum())
    return total % 2**64


def file_sum(path: Path) -> str:
    """The sum of a whole slab file, and a hash of its header, as text."""
    with SlabFile(path) as file:
        total, buffer = 0, aligned(_DIRECT_BLOCK_BYTES)
        for offset in range(0, file.data_bytes, len(buffer)):
            piece = buffer[: min(len(buffer), file.data_bytes - offset)]
            file.read(offset, piece)
            total += block_sum(piece, offset)
        return sum_text(os.pread(file.buffered, file.data_start, 0), total)


def sum_text(header: bytes, total: int) -> str:
    return f"sum:{total % 2**64:016x}:{zlib.crc32(header):08x}"


def slab_sum(header: bytes, slab: Tensor) -> str:
    """The sum that `write_slab` would return."""
    data = slab.detach().contiguous().view(torch.uint8)
    starts = range(0, data.nbytes, _DIRECT_BLOCK_BYTES)
    return sum_text(header, sum(block_sum(data[a : a + _DIRECT_BLOCK_BYTES], a) for a in starts))


def write_slab(path: Path, header: bytes, slab: Tensor) -> str:
    """Write a slab that lies anywhere to a new file; returns its sum."""
    data = slab.detach().contiguous().view(torch.uint8)
    buffer, total = aligned(_DIRECT_BLOCK_BYTES), 0
    with SlabFile.create(path, header, data.nbytes) as file:
        for offset in range(0, data.nbytes, len(buffer)):
            piece = buffer[: min(len(buffer), data.nbytes - offset)].copy_(data[offset : offset + len(buffer)])
            file.write(offset, piece)
            total += block_sum(piece, offset)
    return sum_text(header, total)
