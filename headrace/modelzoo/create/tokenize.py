"""A chunk of text -> a file of token ids, by a worker process."""

import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.create.inputs import Chunk
from headrace.text.sentences import split_long_line, split_sentences
from headrace.text.tokens import write_atomically
from headrace.text.vocabulary import Vocabulary
from headrace.text.vocabulary.words import JAPANESE

ENCODE_CHARACTERS = 100_000  # encoded at once: bounds the tokenizer's own memory, some 500 bytes a character
LONGEST_SENTENCE_BYTES = 30_000  # a longer one is no sentence, and costs the tokenizer memory in one piece
JAPANESE_SHARE = 0.1
"""A line with this share of kana and kanji is split by the Japanese rule."""


def chunk_path(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.safetensors"


def tokenize_chunk(
    chunk: Chunk, folder: Path, vocabulary: Vocabulary, clean: Callable[[str], str] | None, settings: Settings
) -> None:
    """Write the chunk's arrays: tokens, sentence_ends, document_firsts (sentences that begin a document) and facts."""
    pending: list[str] = []
    characters = 0
    tokens: list[np.ndarray] = [np.empty(0, np.int32)]
    starts: list[np.ndarray] = [np.empty(0, bool)]
    lengths: list[int] = []
    firsts: list[int] = []
    first_of_piece: list[int] = []  # of pending: the sentences at which pieces begin a document
    open_document = False

    def encode() -> None:
        nonlocal pending, characters, open_document, first_of_piece
        ids = vocabulary.encode_batch(pending)
        if settings.mask_whole_word and settings.masks:
            starts.extend(_word_starts(vocabulary, pending, ids, clean is not None))
        tokens.append(np.fromiter(chain.from_iterable(ids), np.int32))
        begins = iter([*first_of_piece, len(pending) + 1])
        begin = next(begins)
        for i, each in enumerate(ids):
            while i >= begin:
                open_document, begin = True, next(begins)
            if each:
                if open_document:
                    firsts.append(len(lengths))
                    open_document = False
                lengths.append(len(each))
        if begin <= len(pending):
            open_document = True
        pending, characters, first_of_piece = [], 0, []

    for piece in chunk.pieces:
        if piece.starts:
            first_of_piece.append(len(pending))
        for line in piece.lines:
            for sentence in sentences_of(line, settings.single_sentence_per_line):
                pending.append(clean(sentence) if clean else sentence)
                characters += len(sentence)
                if characters >= ENCODE_CHARACTERS:
                    encode()
    encode()
    arrays = {
        "tokens": np.concatenate(tokens),
        "sentence_ends": np.cumsum(lengths, dtype=np.int64),
        "document_firsts": np.array(firsts, np.int64),
        "facts": np.array([chunk.pass_number, chunk.num_bytes, not chunk.pieces[0].starts, open_document], np.int64),
    }
    if settings.mask_whole_word and settings.masks:
        arrays["word_starts"] = np.concatenate(starts).astype(np.uint8)
    write_atomically(chunk_path(folder, chunk.number), save(arrays))


def sentences_of(line: str, whole_lines: bool) -> list[str]:
    """The line as it is, or its sentences by the rule of its language."""
    if whole_lines:
        found = [line.strip()]
    else:
        num_japanese = 0 if line.isascii() else len(JAPANESE.findall(line))
        in_japanese = num_japanese > 0 and num_japanese >= JAPANESE_SHARE * len(_INK.findall(line))
        found = split_sentences(line, "ja" if in_japanese else "en")
    if len(line) * 4 > LONGEST_SENTENCE_BYTES:
        found = [piece for sentence in found for piece in split_long_line(sentence, LONGEST_SENTENCE_BYTES)]
    return [sentence for sentence in found if sentence]


_INK = re.compile(r"\S")


def _word_starts(
    vocabulary: Vocabulary, sentences: list[str], ids: list[list[int]], by_marks: bool
) -> list[np.ndarray]:
    """Of a vocab.txt by ## as the script does it; others by MeCab, white space or the tokenizer's marks."""
    if by_marks:
        return [vocabulary.starts_word(each) for each in ids]
    return vocabulary.word_starts_batch(sentences, ids)
