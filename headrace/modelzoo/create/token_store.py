"""The text as token ids on disk, read by place with `pread`: nothing is mapped, so resident memory stays small.

tokens.bin            uint16 | uint32 (T,)   all sentences back to back, no special tokens
word_starts.bin       uint8 (T,)             1 = the token starts a word; only for whole-word masks
sentence_starts.bin   int64 (S + 1,)         sentence s is tokens[sentence_starts[s] : sentence_starts[s + 1]]
document_starts.bin   int64 (D + 1,)         document d is sentences[document_starts[d] : document_starts[d + 1]]
store.json                                   written last: counts, and which documents each pass holds
"""

import json
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import UserError
from headrace.text.tokens import write_atomically

BLOCK_SENTENCES = 1 << 14


class TokenStore:
    """A finished store. Files are opened when first used and stay open: one descriptor each."""

    def __init__(self, folder: Path, counts: dict[str, Any] | None = None):
        """counts: those of another store, for a folder that holds nothing but tokens (`windows.stream_windows`)."""
        self.folder = folder
        self.counts: dict[str, Any] = counts or json.loads((folder / "store.json").read_text("utf-8"))
        self.dtype = np.dtype(self.counts["dtype"])
        self._block_number, self._block = -1, np.empty(0, np.int64)

    @cached_property
    def _files(self) -> dict[str, int]:
        return {path.name: os.open(path, os.O_RDONLY) for path in self.folder.glob("*.bin")}

    @property
    def num_documents(self) -> int:
        return self.counts["documents"]

    @property
    def has_word_starts(self) -> bool:
        return self.counts["word_starts"]

    def tokens(self, start: int, stop: int) -> bytes:
        """As they lie in the file: `dtype` tells how to read them."""
        return self._read("tokens.bin", start, stop, self.dtype.itemsize)

    def word_starts(self, start: int, stop: int) -> bytes:
        return self._read("word_starts.bin", start, stop, 1)

    def sentence_starts(self, first: int, after: int) -> list[int]:
        """Of sentences first to after, `after` included: after - first + 1 places."""
        return np.frombuffer(self._read("sentence_starts.bin", first, after + 1, 8), np.int64).tolist()

    def document(self, number: int) -> tuple[int, int]:
        """Its sentences: (first, after the last)."""
        first, after = np.frombuffer(self._read("document_starts.bin", number, number + 2, 8), np.int64).tolist()
        return first, after

    def document_starts(self, first: int, after: int) -> list[int]:
        return np.frombuffer(self._read("document_starts.bin", first, after + 1, 8), np.int64).tolist()

    def document_tokens(self, number: int) -> tuple[int, int]:
        """Its tokens: (first, after the last)."""
        first, after = self.document(number)
        return self.sentence_starts(first, first)[0], self.sentence_starts(after, after)[0]

    def sentence_start(self, number: int) -> int:
        """One place, of a walk through neighbouring sentences: a block around it is kept."""
        block = number // BLOCK_SENTENCES
        if block != self._block_number:
            first = block * BLOCK_SENTENCES
            after = min(first + BLOCK_SENTENCES, self.counts["sentences"] + 1)
            self._block = self.sentence_starts(first, after - 1)
            self._block_number = block
        return self._block[number - block * BLOCK_SENTENCES]

    def _read(self, name: str, start: int, stop: int, item_bytes: int) -> bytes:
        wanted, offset = (stop - start) * item_bytes, start * item_bytes
        data = os.pread(self._files[name], wanted, offset)
        while len(data) < wanted:
            more = os.pread(self._files[name], wanted - len(data), offset + len(data))
            if not more:
                raise UserError(
                    f"{self.folder / name}: ends at byte {offset + len(data)}, {offset + wanted} expected; delete "
                    f"{self.folder.parent} and run the same command again"
                )
            data += more
        return data


def is_finished(folder: Path) -> bool:
    return (folder / "store.json").is_file()


def assemble(chunk_files: Iterator[Path], folder: Path, dtype: np.dtype, word_starts: bool) -> None:
    """Join the chunks that `tokenize` wrote. Memory: one chunk."""
    from safetensors.numpy import load

    folder.mkdir(parents=True, exist_ok=True)
    num_tokens = num_sentences = num_documents = num_bytes = 0
    passes: list[int] = []  # documents of each
    starts_later = False  # a document has begun, but not one of its sentences held a token yet
    names = ["tokens", "sentence_starts", "document_starts"] + (["word_starts"] if word_starts else [])
    files = {name: (folder / f"{name}.bin").open("wb") for name in names}
    try:
        for path in chunk_files:
            chunk = load(path.read_bytes())
            pass_number, chunk_bytes, continues, open_document = chunk["facts"].tolist()
            while len(passes) <= pass_number:
                passes.append(0)
                starts_later = False
            ends, firsts = chunk["sentence_ends"].astype(np.int64), chunk["document_firsts"].astype(np.int64)
            if starts_later and continues and len(ends) and not (len(firsts) and firsts[0] == 0):
                firsts = np.concatenate([[0], firsts])
            starts_later = bool(open_document) or (starts_later and bool(continues) and not len(ends))
            files["tokens"].write(chunk["tokens"].astype(dtype).tobytes())
            if word_starts:
                files["word_starts"].write(chunk["word_starts"].tobytes())
            starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
            files["sentence_starts"].write((num_tokens + starts).astype(np.int64).tobytes())
            files["document_starts"].write((num_sentences + firsts).astype(np.int64).tobytes())
            num_tokens += len(chunk["tokens"])
            num_sentences += len(ends)
            num_documents += len(firsts)
            passes[pass_number] += len(firsts)
            num_bytes += chunk_bytes
        files["sentence_starts"].write(np.int64(num_tokens).tobytes())
        files["document_starts"].write(np.int64(num_sentences).tobytes())
    finally:
        for file in files.values():
            file.close()
    counts = {
        "documents": num_documents,
        "sentences": num_sentences,
        "tokens": num_tokens,
        "bytes": num_bytes,
        "passes": passes,
        "dtype": dtype.name,
        "word_starts": word_starts,
    }
    write_atomically(folder / "store.json", json.dumps(counts).encode())
