"""The section text: which documents, how they are read, and the vocabulary."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from headrace.sections import BelowOne, NonNegativeInt, PositiveInt, Section


class VocabularyParams(Section):
    kind: Literal["unigram", "bpe", "wordpiece_mecab", "wordpiece", "character", "byte"] = "unigram"
    """What to train: SentencePiece unigram or BPE; WordPiece over MeCab words or over whitespace; characters; bytes."""
    size: PositiveInt = 8000
    """Number of entries, the five special tokens included (ignored for `byte`)."""
    sample_characters: PositiveInt = 10_000_000
    """The vocabulary is trained on a seeded sample of at most this many characters."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 0.9995
    """Share of character occurrences that get an entry of their own; rarer characters become [UNK]."""
    load: Path | None = None
    """Use this vocabulary instead of training one: a Hugging Face tokenizer folder, a SentencePiece .model or a BERT
    vocab.txt."""


class TextParams(Section):
    input: list[str]
    """Files, folders or globs of raw text."""
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
    ] = "auto"
    """How documents lie in the files; `auto` detects it and prints what it found."""
    encoding: str = "auto"
    """Character encoding; `auto` detects UTF-8, UTF-16, Shift-JIS and EUC-JP."""
    invalid_bytes: Literal["strict", "replace", "skip"] = "strict"
    """Bytes that are not text in the encoding: stop, put U+FFFD, or drop the line (counted)."""
    text_field: str = "text"
    """The field of a JSONL record or column of a Parquet file that holds the text."""
    language: Literal["ja", "en"] = "ja"
    """Rules for sentence ends and words."""
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

    @field_validator("input", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("input")
    @classmethod
    def _at_least_one(cls, value: list[str]) -> list[str]:
        if not value:
            raise ValueError("name at least one file, folder or glob")
        return value
