"""Tokens on disk: written once by prepare, memory-mapped by everything after it.

    tokens/
      source.json                    what the tokens are made of; another text or setting refuses to mix
      chunks/00000.json              one a finished chunk of input: counts, and the checksum of its shards
      train/00000.safetensors        documents that train
      held_out/00000.safetensors     documents that only evaluate
      manifest.json                  written last: every shard and the input report

A shard is a safetensors file with five flat arrays:
    tokens           uint16 | uint32 (T,)   all sentences back to back, no special tokens
    word_starts      uint8 (ceil(T / 8),)   bit t = token t starts a word (numpy.packbits order)
    sentence_ends    uint32 (S,)            sentence s is tokens[sentence_ends[s - 1] : sentence_ends[s]]
    document_ends    uint32 (D,)            document d is sentences[document_ends[d - 1] : document_ends[d]]
    document_hashes  uint64 (D,)            BLAKE2b of the document's text: the split and the duplicate count use it
"""

import hashlib
import json
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors.numpy import save

from headrace.errors import UserError

Split = Literal["train", "held_out"]
SPLITS: tuple[Split, ...] = ("train", "held_out")
SLICE_DOCUMENTS = 4_000_000
_DTYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "U64": np.uint64}


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One line of the manifest: where a shard is and what it must contain."""

    path: str  # relative to the tokens folder
    size_bytes: int
    sha256: str
    num_documents: int
    num_sentences: int
    num_tokens: int


@dataclass
class ShardBuilder:
    """Collects documents in memory until they become one shard."""

    vocabulary_size: int
    tokens: list[np.ndarray] = field(default_factory=list)
    word_starts: list[np.ndarray] = field(default_factory=list)
    sentence_lengths: list[int] = field(default_factory=list)
    document_ends: list[int] = field(default_factory=list)
    document_hashes: list[int] = field(default_factory=list)

    def add_document(
        self, sentences: Sequence[np.ndarray], word_starts: Sequence[np.ndarray], document_hash: int
    ) -> None:
        """sentences: token ids, (n,) each; word_starts: bool, the same shapes."""
        self.tokens.extend(sentences)
        self.word_starts.extend(word_starts)
        self.sentence_lengths.extend(len(sentence) for sentence in sentences)
        self.document_ends.append(len(self.sentence_lengths))
        self.document_hashes.append(document_hash)

    def write(self, path: Path, relative_to: Path) -> ShardInfo | None:
        """Write the shard aside and rename it in; None when there is nothing to write."""
        if not self.document_ends:
            return None
        tokens = np.concatenate(self.tokens)
        assert int(tokens.max()) < self.vocabulary_size, "a token id is outside the vocabulary"
        data = save(
            {
                "tokens": tokens.astype(np.uint16 if self.vocabulary_size <= 1 << 16 else np.uint32),
                "word_starts": np.packbits(np.concatenate(self.word_starts)),
                "sentence_ends": np.cumsum(self.sentence_lengths).astype(np.uint32),
                "document_ends": np.array(self.document_ends, np.uint32),
                "document_hashes": np.array(self.document_hashes, np.uint64),
            }
        )
        write_atomically(path, data)
        return ShardInfo(
            path=path.relative_to(relative_to).as_posix(),
            size_bytes=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            num_documents=len(self.document_ends),
            num_sentences=len(self.sentence_lengths),
            num_tokens=len(tokens),
        )


class Shard:
    """A memory-mapped shard: arrays are views of the file, opened when first used."""

    def __init__(self, folder: Path, info: ShardInfo):
        self.folder, self.info = folder, info

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        path = self.folder / self.info.path
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        header_bytes = int.from_bytes(mapped[:8], "little")
        header = json.loads(mapped[8 : 8 + header_bytes])
        arrays = {}
        for name, entry in header.items():
            start, stop = entry["data_offsets"]
            dtype = np.dtype(_DTYPES[entry["dtype"]])
            arrays[name] = np.frombuffer(mapped, dtype, (stop - start) // dtype.itemsize, 8 + header_bytes + start)
        return arrays

    @property
    def tokens(self) -> np.ndarray:  # (T,)
        return self._arrays["tokens"]

    @property
    def sentence_ends(self) -> np.ndarray:  # (S,)
        return self._arrays["sentence_ends"]

    @property
    def document_ends(self) -> np.ndarray:  # (D,)
        return self._arrays["document_ends"]

    @property
    def document_hashes(self) -> np.ndarray:  # (D,)
        return self._arrays["document_hashes"]

    def close(self) -> None:
        """Unmap the file: each mapping holds a file descriptor. It is mapped again when next used."""
        self.__dict__.pop("_arrays", None)

    def starts_word(self, start: int, stop: int) -> np.ndarray:
        """Whether each of tokens[start:stop] starts a word, bool (stop - start,)."""
        first_byte = start // 8
        bits = np.unpackbits(self._arrays["word_starts"][first_byte : (stop + 7) // 8])
        return bits[start - 8 * first_byte : stop - 8 * first_byte].astype(bool)


@dataclass(frozen=True)
class TokenFolder:
    """A finished tokens folder. Shards of one split, in order; counts; the input report."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def vocabulary_size(self) -> int:
        return self.manifest["vocabulary_size"]

    @property
    def report(self) -> dict[str, Any]:
        return self.manifest["report"]

    def shards(self, split: Split) -> list[Shard]:
        return [Shard(self.folder, ShardInfo(**info)) for info in self.manifest["shards"][split]]

    def missing(self) -> list[Path]:
        """Shards whose file is not there."""
        paths = [self.folder / shard.info.path for split in SPLITS for shard in self.shards(split)]
        return [path for path in paths if not path.is_file()]

    def verify(self) -> None:
        """Compare every shard's size and checksum with the manifest; raises UserError naming the bad one."""
        for split in SPLITS:
            for shard in self.shards(split):
                path = self.folder / shard.info.path
                remedy = "delete it and run `headrace prepare`, which makes only what is missing"
                if not path.is_file():
                    raise UserError(
                        f"{path}: shard is missing; run `headrace prepare`, which makes only what is missing"
                    )
                if (size := path.stat().st_size) != shard.info.size_bytes:
                    raise UserError(
                        f"{path}: shard is damaged: {size:,} bytes, {shard.info.size_bytes:,} expected; {remedy}"
                    )
                if sha256_of(path) != shard.info.sha256:
                    raise UserError(
                        f"{path}: shard is damaged: its checksum is not the one written in the manifest; {remedy}"
                    )


def open_tokens(folder: Path) -> TokenFolder:
    """Open a finished tokens folder; raises UserError when prepare has not finished there."""
    path = folder / "manifest.json"
    if not path.is_file():
        raise UserError(f"{folder}: holds no finished tokens; run `headrace prepare` first")
    try:
        return TokenFolder(folder, json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise UserError(f"{path}: damaged ({error}); delete it and run `headrace prepare`") from None


def overlapping_documents(tokens: TokenFolder, slice_documents: int = SLICE_DOCUMENTS) -> int:
    """How many documents of held_out also are in train: 0, or the split is broken. slice_documents: looked at together."""
    train, held_out = (_unique_hashes(tokens, split, slice_documents) for split in SPLITS)
    return sum(len(np.intersect1d(a, b, assume_unique=True)) for a, b in zip(train, held_out, strict=True))


def duplicate_documents(tokens: TokenFolder, slice_documents: int = SLICE_DOCUMENTS) -> int:
    """How many documents repeat an earlier one, both splits together."""
    total = sum(shard.info.num_documents for split in SPLITS for shard in tokens.shards(split))
    return total - sum(len(hashes) for split in SPLITS for hashes in _unique_hashes(tokens, split, slice_documents))


def _unique_hashes(tokens: TokenFolder, split: Split, slice_documents: int) -> Iterator[np.ndarray]:
    """Sorted unique document hashes, in slices of the hash space so that memory does not grow with the corpus."""
    total = sum(shard.info.num_documents for each in SPLITS for shard in tokens.shards(each))
    num_slices = np.uint64(max(1, -(-total // slice_documents)))
    for i in range(int(num_slices)):
        parts = []
        for shard in tokens.shards(split):
            hashes = shard.document_hashes
            parts.append(hashes[hashes % num_slices == i])
            shard.close()
        yield np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))


def document_hash(text: str) -> int:
    """64 bits of BLAKE2b of the text: the same text always falls on the same side of the split."""
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def is_held_out(hashed: int, share: float) -> bool:
    return hashed < share * 2**64


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, data: bytes) -> None:
    """Write beside, flush to disk, rename: after a crash the file is whole or absent."""
    aside = path.with_name(path.name + ".tmp")
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); free space or choose another folder, then run the same "
            f"command again: what is done stays done"
        ) from None
