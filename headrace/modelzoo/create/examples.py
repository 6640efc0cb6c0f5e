"""Rows of the plan -> the examples' arrays: tokens from disk, special tokens, segments, masks.

pairs:  [CLS] A [SEP] B [SEP] 0 0 …      windows:  [CLS] A [SEP] 0 0 …
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.create.masks import Masked, mask
from headrace.modelzoo.create.plan import stream_folder
from headrace.modelzoo.create.token_store import TokenStore
from headrace.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class Examples:
    """N examples of length L."""

    ids: np.ndarray  # int32 (N, L) without masks
    lengths: np.ndarray  # int64 (N,) tokens with special ones
    segment_ids: np.ndarray  # int32 (N, L)
    labels: np.ndarray  # int32 (N,)
    masked: Masked | None


class Source:
    """Reads spans of tokens of the store, or of the streams of documents in the plan's folder."""

    def __init__(self, store: TokenStore, plan: Path):
        self.store, self.plan = store, plan
        self._streams: dict[int, TokenStore] = {}

    def read(self, rows: np.ndarray, name: str) -> tuple[bytes, bytes]:
        """All A spans and all B spans of the rows, end to end. name: tokens or word_starts."""
        parts_a, parts_b = [], []
        spans = zip(rows["stream"].tolist(), rows["a"].tolist(), rows["b"].tolist(), strict=True)
        for stream, (a_start, a_stop), (b_start, b_stop) in spans:
            store = self.store if stream < 0 else self._stream(stream)
            read = store.tokens if name == "tokens" else store.word_starts
            parts_a.append(read(a_start, a_stop))
            if b_stop > b_start:
                parts_b.append(read(b_start, b_stop))
        return b"".join(parts_a), b"".join(parts_b)

    def _stream(self, number: int) -> TokenStore:
        if number not in self._streams:
            self._streams[number] = TokenStore(stream_folder(self.plan, number), self.store.counts)
        return self._streams[number]


def build(rows: np.ndarray, source: Source, vocabulary: Vocabulary, separator_id: int, settings: Settings) -> Examples:
    """separator_id: of --document_separator_token, never masked."""
    length_a = rows["a"][:, 1] - rows["a"][:, 0]
    length_b = rows["b"][:, 1] - rows["b"][:, 0]
    ids = np.zeros((len(rows), settings.max_seq_length), np.int32)
    _lay(ids, *source.read(rows, "tokens"), source.store.dtype, length_a, length_b)
    row = np.arange(len(rows))
    ids[:, 0] = vocabulary.cls_id
    ids[row, length_a + 1] = vocabulary.sep_id
    lengths = length_a + 2
    column = np.arange(settings.max_seq_length)
    segments = np.zeros_like(ids)
    if settings.pairs:
        lengths = lengths + length_b + 1
        ids[row, lengths - 1] = vocabulary.sep_id
        segments[(column >= length_a[:, None] + 2) & (column < lengths[:, None])] = 1
    masked = None
    if settings.masks:
        starts_word = None
        if settings.mask_whole_word:
            starts_word = np.zeros(ids.shape, bool)
            _lay(starts_word, *source.read(rows, "word_starts"), np.dtype(np.uint8), length_a, length_b)
        may_mask = (column < lengths[:, None]) & ~np.isin(ids, [vocabulary.cls_id, vocabulary.sep_id, separator_id])
        masked = mask(
            ids,
            lengths,
            may_mask,
            starts_word,
            rows["key"],
            rate=settings.masked_lm_prob,
            max_predictions=settings.max_predictions_per_seq,
            mask_id=vocabulary.mask_id,
            vocabulary_size=vocabulary.size,
        )
    return Examples(ids, lengths, segments, rows["label"], masked)


def _lay(target: np.ndarray, a: bytes, b: bytes, dtype: np.dtype, length_a: np.ndarray, length_b: np.ndarray) -> None:
    """Put A from column 1 on and B two columns after its end, row by row."""
    for data, lengths, start in ((a, length_a, np.ones_like(length_a)), (b, length_b, length_a + 2)):
        values = np.frombuffer(data, dtype)
        row = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        target[row, start[row] + within] = values
