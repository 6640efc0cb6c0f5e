"""The section text: which documents, how they are read, and the vocabulary."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from headrace.sections import BelowOne, NonNegativeInt, PositiveInt, Section

# Languages that are no prose -> the values of keys that are not given: what prose needs would change sequences.
SEQUENCE_DEFAULTS: dict[str, dict[str, Any]] = {
    language: {"unicode": "none", "vocabulary": {"character_coverage": 1.0}}
    for language in ("dna", "protein", "series")
}
SEQUENCE_DEFAULTS["series"]["vocabulary"] = {"kind": "bins", "size": 512}
_SEQUENCE_OF_FORMAT = {"fasta": ("dna", "protein"), "series": ("series",)}
_LANGUAGE_OF_KIND = {"kmer": "dna", "bins": "series"}


class VocabularyParams(Section):
    kind: Literal["unigram", "bpe", "wordpiece_mecab", "wordpiece", "character", "byte", "kmer", "bins"] = "unigram"
    """What to train: SentencePiece unigram or BPE; WordPiece over MeCab words or over whitespace; characters; bytes;
    kmer: k bases of DNA each; bins: ranges of the values of time series."""
    size: PositiveInt = 8000
    """Number of entries, the five special tokens included (ignored for `byte` and `kmer`)."""
    k: Annotated[int, Field(ge=1, le=8)] = 6
    """Bases a k-mer; kmer."""
    overlapping: bool = True
    """A k-mer begins at every base (DNABERT) or at every k-th (what is left over becomes single bases); kmer."""
    binning: Literal["quantile", "uniform"] = "quantile"
    """Bins that hold equally many of the sampled values, or are equally wide between the least and the greatest; bins."""
    sample_characters: PositiveInt = 10_000_000
    """The vocabulary is trained on a seeded sample of at most this many characters."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 0.9995
    """Share of character occurrences that get an entry of their own; rarer characters become [UNK]."""
    load: Path | None = None
    """Use this vocabulary instead of training one: a Hugging Face tokenizer folder, a SentencePiece .model or a BERT
    vocab.txt."""
    extend: NonNegativeInt = 0
    """Learn this many more entries from the text on top of `load`, or of the vocabulary of `model.init_from`: whole words of a
    WordPiece vocabulary, pieces of a SentencePiece unigram one. A model that grows with it begins their rows as the means of
    those of the pieces they replace."""

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> "VocabularyParams":
        of_kind = {"k": "kmer", "overlapping": "kmer", "binning": "bins"}
        for name, kind in of_kind.items():
            if name in self.model_fields_set and self.kind != kind and getattr(self, name) != _default_of(self, name):
                raise ValueError(
                    f"text.vocabulary.{name} = {getattr(self, name)!r} has no meaning for kind = {self.kind!r}; leave it out "
                    f"or set text.vocabulary.kind = {kind}"
                )
        return self


def _default_of(section: Section, name: str) -> Any:
    return type(section).model_fields[name].default


class SeriesParams(Section):
    id: str | None = None
    """Column that says which series a row belongs to; the rows of one stand together. None: each column of values is one."""
    time: str | None = None
    """Column of times, which must rise within a series: numbers, or texts such as 2024-01-31 that sort by time."""
    values: list[str] = []
    """Columns of values; default: all but id and time. Empty fields, NA and nan are missing values."""
    length: Annotated[int, Field(ge=2)] = 256
    """Points a document has: a series is cut into windows of so many, each over its own scale."""
    stride: PositiveInt | None = None
    """Points from the beginning of one window to the next; default: length, so that windows share none."""
    horizon: NonNegativeInt = 0
    """How far ahead forecasts will look: the last so many points of a window do not count for its scale."""
    held_out_points: NonNegativeInt = 0
    """The last so many points of every series are left out, so that forecasts can be judged on them."""

    @model_validator(mode="after")
    def _horizon_leaves_a_context(self) -> "SeriesParams":
        if self.horizon >= self.length:
            raise ValueError(
                f"text.series.horizon = {self.horizon} should be below text.series.length = {self.length}: the points before "
                "it are what a forecast is made from"
            )
        return self


class TextParams(Section):
    input: list[str] = []
    """Files, folders or globs of raw text; required but for tasks on `data`."""
    format: Literal[
        "auto",
        "sentence_per_line",
        "document_per_line",
        "document_per_block",
        "document_per_file",
        "jsonl",
        "parquet",
        "wikiextractor",
        "mediawiki",
        "fasta",
        "series",
    ] = "auto"
    """How documents lie in the files; `auto` detects it and prints what it found. fasta: sequences of DNA or protein;
    series: tables of numbers, CSV or Parquet."""
    encoding: str = "auto"
    """Character encoding; `auto` detects UTF-8, UTF-16, Shift-JIS and EUC-JP."""
    invalid_bytes: Literal["strict", "replace", "skip"] = "strict"
    """Bytes that are not text in the encoding: stop, put U+FFFD, or drop the line (counted)."""
    text_field: str = "text"
    """The field of a JSONL record or column of a Parquet file that holds the text."""
    language: Literal["ja", "en", "dna", "protein", "series"] = "ja"
    """Rules for sentence ends and words; dna, protein and series have neither, and leave letters as they are."""
    series: SeriesParams | None = None
    """Which columns of a table are read, and how long the windows are; format series."""
    unicode: Literal["none", "nfc", "nfkc"] = "nfkc"
    """Unicode normalisation of all text. nfkc: ｶﾞ becomes ガ, ㈱ becomes (株), U+3000 becomes a space."""
    lowercase: bool = False
    """Lower-case all text."""
    strip_accents: bool = False
    """Remove accents from Latin letters; Japanese voicing marks always stay."""
    held_out: BelowOne = 0.01
    """Share of documents kept for evaluation, chosen by a hash of their text; they never train."""
    words: Literal["auto", "mecab", "whitespace"] = "auto"
    """What a word is for whole-word masking: MeCab words, runs between spaces, or by language (`auto`)."""
    workers: NonNegativeInt = 0
    """Processes that tokenize; 0 = one per CPU core."""
    vocabulary: VocabularyParams = VocabularyParams()

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_sequences(cls, given: Any) -> Any:
        """A table is no prose whatever `language` says, so it need not say so."""
        if not isinstance(given, dict):
            return given
        if given.get("format") == "series":
            given = {"language": "series", "series": {}, **given}
        defaults = SEQUENCE_DEFAULTS.get(str(given.get("language")))
        if defaults is None:
            return given
        vocabulary = given.get("vocabulary", {})
        if isinstance(vocabulary, dict):
            given = {**given, "vocabulary": {**defaults["vocabulary"], **vocabulary}}
        return {"unicode": defaults["unicode"], **given}

    @model_validator(mode="after")
    def _keys_fit_each_other(self) -> "TextParams":
        if (fitting := _SEQUENCE_OF_FORMAT.get(self.format)) and self.language not in fitting:
            raise ValueError(
                f"text.language = {self.language!r} does not fit text.format = {self.format!r}; use {' or '.join(fitting)}"
            )
        if (self.format == "series") != (self.language == "series"):
            raise ValueError("text.language = 'series' goes with text.format = 'series' alone; set both or neither")
        if self.series is not None and self.format != "series":
            raise ValueError(f"text.series has no meaning for text.format = {self.format!r}; leave it out")
        kind = self.vocabulary.kind
        if self.vocabulary.load is None and (kind == "bins") != (self.language == "series"):
            raise ValueError(
                f"text.vocabulary.kind = {kind!r} does not fit text.language = {self.language!r}; "
                + ("use bins" if self.language == "series" else "bins are for time series: text.format = series")
            )
        if (wanted := _LANGUAGE_OF_KIND.get(kind)) not in (None, self.language):
            raise ValueError(
                f"text.vocabulary.kind = {kind!r} is for text.language = {wanted!r}, not {self.language!r}"
            )
        return self

    @field_validator("input", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value
