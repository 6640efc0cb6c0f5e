"""What a reader hands out, what it is told, and under which names it counts."""

from dataclasses import dataclass
from typing import NamedTuple

MAX_DOCUMENT_CHARACTERS = 8 << 20
"""A longer document is handed out as several."""

DOCUMENTS, ONE_SENTENCE, SPLIT, LONG_LINES, EMPTY_FILES, EMPTY = (
    "documents",
    "documents of one sentence",
    "documents split",
    "long lines split",
    "empty files",
    "dropped: empty document",
)


@dataclass(frozen=True, slots=True)
class Document:
    text: str
    source: str
    """file:line where it begins; file:row for Parquet"""
    lines_are_sentences: bool = False
    group: str | None = None
    """Documents of one group all train or are all held out; None: the text itself decides."""

    @property
    def split_key(self) -> str:
        """What decides by its hash whether the document is held out."""
        return self.text if self.group is None else self.group

    @property
    def identity(self) -> str:
        """What two documents that are the same share."""
        return self.text if self.group is None else f"{self.group}\0{self.text}"


class SeriesOptions(NamedTuple):
    """`text.series`, as the reader needs it."""

    id: str | None
    time: str | None
    values: tuple[str, ...]
    length: int
    stride: int
    horizon: int
    held_out_points: int


@dataclass(frozen=True, slots=True)
class ReadOptions:
    encoding: str = "auto"
    errors: str = "strict"
    text_field: str = "text"
    language: str = "en"
    series: SeriesOptions | None = None
