"""A SentencePiece `.model` file -> its pieces and settings -> a `tokenizers` Tokenizer that encodes identically.

The file is a protocol buffer; we read the dozen fields we need, so no generated code and no protobuf version matter.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from headrace.errors import InputError

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
SPACE = "▁"

# The start of a text that is not empty and does not begin with a special token, whose names stand between the two.
NOT_BEFORE, BEFORE_ANY_TEXT = r"\A(?!(?i:", r"))(?=[\s\S])"


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    type: int = NORMAL


@dataclass(frozen=True)
class SentencePieceModel:
    pieces: list[Piece]
    model_type: int
    unk_id: int
    byte_fallback: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_model(path: Path) -> SentencePieceModel:
    data = path.read_bytes()
    try:
        fields = list(_fields(data))
        pieces = [_piece(value) for number, value in fields if number == 1 and isinstance(value, bytes)]
        trainer: dict[int, Any] = dict(_fields(_last(fields, 2)))
        spec: dict[int, Any] = dict(_fields(_last(fields, 3)))
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a SentencePiece model, or damaged ({error})") from error
    unknown = next((i for i, piece in enumerate(pieces) if piece.type == UNKNOWN), None)
    if unknown is None or not trainer or not spec:
        raise InputError(f"{path}: not a SentencePiece model, or cut short: settings or the unknown piece are missing")
    model_type = trainer.get(3, UNIGRAM)
    if model_type not in (UNIGRAM, BPE):
        raise InputError(f"{path}: a SentencePiece model of type word or char; only unigram and bpe can be loaded")
    if trainer.get(24, 0) or not spec.get(5, 1):
        raise InputError(f"{path}: treat_whitespace_as_suffix and escape_whitespaces=false are not supported")
    return SentencePieceModel(
        pieces=pieces,
        model_type=model_type,
        unk_id=unknown,
        byte_fallback=bool(trainer.get(35, 0)),
        charsmap=spec.get(2, b""),
        add_dummy_prefix=bool(spec.get(3, 1)),
        remove_extra_whitespaces=bool(spec.get(4, 1)),
    )


def to_tokenizer(
    model: SentencePieceModel, special_tokens: list[str], unicode: normalizers.Normalizer | None = None
) -> Tokenizer:
    """The tokenizer without post-processor. `special_tokens` the model lacks get the ids after its last piece;
    `unicode` runs first, as it did before training."""
    texts = [piece.text for piece in model.pieces]
    whole = [piece.text for piece in model.pieces if piece.type == USER_DEFINED]
    if model.model_type == UNIGRAM:
        scores = [(piece.text, piece.score) for piece in model.pieces]
        tokenizer = Tokenizer(models.Unigram(scores, unk_id=model.unk_id, byte_fallback=model.byte_fallback))
    else:
        tokenizer = Tokenizer(
            models.BPE(
                vocab={text: i for i, text in enumerate(texts)},
                merges=_merges(model.pieces),
                unk_token=texts[model.unk_id],
                fuse_unk=True,
                byte_fallback=model.byte_fallback,
                ignore_merges=bool(whole),  # a user-defined piece stands alone and has no merges
            )
        )
    control = [piece.text for piece in model.pieces if piece.type in (UNKNOWN, CONTROL)]
    special = list(dict.fromkeys(control + special_tokens))
    tokenizer.normalizer = normalizers.Sequence(_normalizers(model, special, unicode))
    spaces: pre_tokenizers.PreTokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="never", split=False)
    if whole:
        pattern = "|".join(re.escape(text) for text in sorted(whole, key=len, reverse=True))
        spaces = pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(Regex(pattern), "isolated")])
    tokenizer.pre_tokenizer = spaces
    steps: list[Any] = [decoders.Replace(SPACE, " ")]
    if model.byte_fallback:
        steps.append(decoders.ByteFallback())
    steps.append(decoders.Fuse())
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    tokenizer.decoder = decoders.Sequence(steps)
    # `normalized`: found in the normalised text, so that the normalizer sees the whole sentence and its start.
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=True) for text in special])
    return tokenizer


def _normalizers(
    model: SentencePieceModel, special: list[str], unicode: normalizers.Normalizer | None
) -> list[normalizers.Normalizer]:
    steps = [unicode] if unicode else []
    if model.charsmap:
        # The Rust side maps characters one by one where two of them take six bytes or more (half-width ｶﾞ), which
        # would take voicing marks off their kana; composing afterwards repairs it.
        steps += [normalizers.Precompiled(model.charsmap), normalizers.NFC()]
    if model.remove_extra_whitespaces:  # of all white space SentencePiece means U+0020
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(r" {2,}"), " ")]
    if model.add_dummy_prefix:
        # One space before any sentence, even one that starts with a space, but not before a special token or after it.
        names = "|".join(re.escape(text) for text in special)
        steps.append(normalizers.Replace(Regex(NOT_BEFORE + names + BEFORE_ANY_TEXT), SPACE))
    return steps


def _merges(pieces: list[Piece]) -> list[tuple[str, str]]:
    """SentencePiece merges the neighbours whose union scores best, however the union is cut: every cut is a merge."""
    rank = {piece.text: (-piece.score, i) for i, piece in enumerate(pieces) if piece.type == NORMAL}
    cuts = (
        (order, text[:cut], text[cut:])
        for text, order in rank.items()
        for cut in range(1, len(text))
        if text[:cut] in rank and text[cut:] in rank
    )
    return [(left, right) for _, left, right in sorted(cuts)]


def _piece(data: bytes) -> Piece:
    fields: dict[int, Any] = dict(_fields(data))
    return Piece(fields[1].decode(), struct.unpack("<f", fields.get(2, bytes(4)))[0], fields.get(3, NORMAL))


def _last(fields: Sequence[tuple[int, object]], number: int) -> bytes:
    return next((value for n, value in reversed(fields) if n == number and isinstance(value, bytes)), b"")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field of one message: varints as int, everything else as bytes."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    while at < len(data):
        key = varint()
        wire = key & 7
        if wire == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(wire)
        if size is None:
            if wire != 2:
                raise IndexError(f"wire type {wire} at byte {at}")
            size = varint()
        if at + size > len(data):
            raise IndexError(f"field ends at byte {at + size} of {len(data)}")
        yield key >> 3, data[at : at + size]
        at += size
