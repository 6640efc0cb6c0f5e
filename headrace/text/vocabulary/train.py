"""A sample of sentences -> a trained vocabulary in a folder, and an account of every line it was given.

sentences -> unicode policy -> lines no trainer reads, counted -> trainer -> tokenizers Tokenizer -> folder
"""

import io
import re
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import sentencepiece
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from headrace.errors import UserError
from headrace.text.normalization import UnicodeForm, normalizer
from headrace.text.vocabulary.bins import bins_tokenizer, learn_bins
from headrace.text.vocabulary.kmers import kmer_tokenizer
from headrace.text.vocabulary.save import MODEL_INPUT_NAMES, add_template, describe, save_fast, written_aside
from headrace.text.vocabulary.sentencepiece_model import NORMAL, SPACE, read_model, to_tokenizer
from headrace.text.vocabulary.vocabulary import ROLES, Vocabulary, open_vocabulary
from headrace.text.vocabulary.words import mecab_words

Kind = Literal["unigram", "bpe", "wordpiece_mecab", "wordpiece", "character", "byte", "kmer", "bins"]

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]  # ids 0 to 4 in every trained vocabulary
NAMES: dict[str, str] = dict(zip(ROLES, SPECIAL_TOKENS, strict=True))
MODEL_FILE = "sentencepiece.model"
# Callers split lines at SentencePiece's customary 4,192 bytes; normalisation may lengthen them after that (㈱ -> (株)).
MAX_LINE_BYTES = 2 * 4192
# Fixed, not the machine's core count: the sums of EM, and so the pieces, depend on how many threads share the lines.
TRAINER_THREADS = 4


@dataclass(frozen=True)
class TrainingReport:
    """lines_given = lines_used + every kind of skipped line."""

    size: int
    characters_used: int
    lines_given: int
    lines_used: int
    lines_empty: int
    lines_too_long: int
    """Over MAX_LINE_BYTES after normalisation (SentencePiece kinds only)."""
    lines_with_meta_symbol: int
    """Holding ▁ (U+2581), which SentencePiece writes for a space (SentencePiece kinds only)."""
    lines_with_nul: int
    """Holding U+0000 (SentencePiece kinds only)."""

    @property
    def lines_skipped(self) -> int:
        return self.lines_given - self.lines_used


def train_vocabulary(
    sentences: Iterable[str],
    folder: Path,
    *,
    kind: Kind = "unigram",
    size: int = 8000,
    unicode: UnicodeForm = "nfkc",
    lowercase: bool = False,
    strip_accents: bool = False,
    character_coverage: float = 0.9995,
    causal: bool = False,
    k: int = 6,
    overlapping: bool = True,
    binning: str = "quantile",
) -> tuple[Vocabulary, TrainingReport]:
    """Trains on `sentences`, which are held in memory: pass a sample. The same sentences give the same files.

    causal: for a model that goes on with a text; ids are the same, `AutoTokenizer` sets other special tokens around it.

    size counts the five special tokens; for `character` and `bins` it is an upper bound, `byte` has always 261 entries and
    `kmer` 4^k + 5, or + 9 when they do not overlap.
    """
    if kind == "wordpiece_mecab" and (unicode == "nfc" or strip_accents):
        raise UserError(
            "text.vocabulary.kind = wordpiece_mecab: its tokenizer (transformers' BertJapaneseTokenizer) can carry "
            "text.unicode = nfkc or none and no text.strip_accents; change these or the kind"
        )
    steps = normalizer(unicode, lowercase and kind != "wordpiece_mecab", strip_accents)
    lines, counts = _prepare(sentences, steps, kind)
    more: dict[str, Any] = {}
    if not lines and kind not in ("byte", "kmer"):
        raise UserError(f"there is no text to train a vocabulary on: {counts.total()} lines given, none usable")
    with written_aside(Path(folder)) as aside:
        if kind == "wordpiece_mecab":
            actual_size = _train_mecab(lines, aside, size, character_coverage, unicode, lowercase)
        else:
            if kind in ("unigram", "bpe"):
                tokenizer = _train_sentencepiece(lines, aside, kind, size, character_coverage, steps)
            elif kind == "wordpiece":
                tokenizer = _wordpiece(lines, size, character_coverage, pre_tokenizers.BertPreTokenizer())
            elif kind == "character":
                tokenizer = _characters(lines, size, character_coverage)
            elif kind == "byte":
                tokenizer = _bytes()
            elif kind == "kmer":
                tokenizer = kmer_tokenizer(SPECIAL_TOKENS, k, overlapping)
                more["kmer"] = {"k": k, "overlapping": overlapping}
            elif kind == "bins":
                more["bins"] = learn_bins(lines, size, binning)
                tokenizer = bins_tokenizer(SPECIAL_TOKENS, more["bins"])
            else:
                raise UserError(f"text.vocabulary.kind = {kind}: choose unigram, bpe, wordpiece_mecab, wordpiece, "
                                "character, byte, kmer or bins")  # fmt: skip
            if kind not in ("unigram", "bpe"):
                if steps is not None:
                    tokenizer.normalizer = steps
                tokenizer.add_special_tokens(SPECIAL_TOKENS)
            add_template(tokenizer, "[CLS]", "[SEP]", causal)
            save_fast(tokenizer, NAMES, aside, causal)
            actual_size = tokenizer.get_vocab_size()
        report = TrainingReport(
            size=actual_size,
            characters_used=sum(map(len, lines)),
            lines_given=counts.total(),
            lines_used=counts["used"],
            lines_empty=counts["empty"],
            lines_too_long=counts["too long"],
            lines_with_meta_symbol=counts["meta symbol"],
            lines_with_nul=counts["nul"],
        )
        describe(
            aside,
            kind=kind,
            ids={role: i for i, role in enumerate(ROLES)},
            unicode=unicode,
            lowercase=lowercase,
            strip_accents=strip_accents,
            training=asdict(report),
            more=more,
        )
    return open_vocabulary(folder), report


def _prepare(
    sentences: Iterable[str], steps: normalizers.Normalizer | None, kind: Kind
) -> tuple[list[str], Counter[str]]:
    """The normalised lines the trainer will read, and how many lines went where."""
    is_sentencepiece = kind in ("unigram", "bpe")
    counts: Counter[str] = Counter()
    lines = []
    for sentence in sentences:
        line = steps.normalize_str(sentence) if steps is not None else sentence
        reason = "used"
        if not line.strip():
            reason = "empty"
        elif is_sentencepiece and len(line) * 4 > MAX_LINE_BYTES and len(line.encode()) > MAX_LINE_BYTES:
            reason = "too long"
        elif is_sentencepiece and SPACE in line:
            reason = "meta symbol"
        elif is_sentencepiece and "\0" in line:
            reason = "nul"
        else:
            lines.append(line)
        counts[reason] += 1
    return lines, counts


# --- SentencePiece


def _train_sentencepiece(
    lines: list[str], aside: Path, kind: str, size: int, coverage: float, steps: normalizers.Normalizer | None
) -> Tokenizer:
    supported = size
    while True:
        try:
            data = _sentencepiece_bytes(lines, kind, supported, coverage)
            break
        except RuntimeError as error:
            message = str(error)
        if too_many := re.search(r"Vocabulary size too high .* <= (\d+)", message):
            supported = int(too_many[1])  # an estimate of the trainer's: go on until it holds, then say so
        elif too_few := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
            raise UserError(_too_small(size, int(too_few[1])))
        else:
            raise UserError(f"SentencePiece could not train the vocabulary: {message}")
    if supported < size:
        raise UserError(_too_large(size, supported))
    path = aside / MODEL_FILE
    path.write_bytes(data)
    return to_tokenizer(read_model(path), SPECIAL_TOKENS, steps)


def pieces_of_text(lines: list[str], num_pieces: int) -> list[tuple[str, float]]:
    """(piece, log-probability) of a unigram model trained on the lines, likeliest first, single characters left out."""
    size = len(SPECIAL_TOKENS) + len(set("".join(lines))) + num_pieces + 1
    while True:
        try:
            data = _sentencepiece_bytes(lines, "unigram", size, 1.0)
            break
        except RuntimeError as error:
            limit = re.search(r"Vocabulary size too high .* <= (\d+)", str(error))
            if limit is None:
                raise UserError(f"SentencePiece could not learn pieces of the text: {error}") from None
            size = int(limit[1])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MODEL_FILE
        path.write_bytes(data)
        pieces = [piece for piece in read_model(path).pieces if piece.type == NORMAL and len(piece.text) > 1]
    return [(piece.text, piece.score) for piece in sorted(pieces, key=lambda piece: (-piece.score, piece.text))]


def _sentencepiece_bytes(lines: list[str], kind: str, size: int, coverage: float) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        character_coverage=coverage,
        normalization_rule_name="identity",  # the lines are normalised, by the tokenizer's own normalizer
        remove_extra_whitespaces=False,
        max_sentence_length=MAX_LINE_BYTES,
        num_threads=TRAINER_THREADS,
        minloglevel=5,  # silent; failures come as exceptions
        pad_id=0,
        unk_id=1,
        bos_id=2,
        eos_id=3,
        pad_piece="[PAD]",
        unk_piece="[UNK]",
        bos_piece="[CLS]",
        eos_piece="[SEP]",
        control_symbols=["[MASK]"],  # the first one after the four: id 4
    )
    return model.getvalue()


# --- WordPiece


def _train_mecab(lines: list[str], aside: Path, size: int, coverage: float, unicode: str, lowercase: bool) -> int:
    from transformers import BertJapaneseTokenizer

    words = [" ".join(mecab_words(line)) for line in lines]
    if lowercase:  # after MeCab, as the tokenizer does
        words = [line.lower() for line in words]
    tokenizer = _wordpiece(words, size, coverage, pre_tokenizers.WhitespaceSplit())
    entries = sorted(tokenizer.get_vocab().items(), key=lambda entry: entry[1])
    vocab_file = aside / "vocab.txt"
    vocab_file.write_text("".join(f"{text}\n" for text, _ in entries), encoding="utf-8")
    BertJapaneseTokenizer(
        str(vocab_file),
        do_lower_case=lowercase,
        word_tokenizer_type="mecab",
        subword_tokenizer_type="wordpiece",
        mecab_kwargs={"mecab_dic": "unidic_lite", "normalize_text": unicode == "nfkc"},
        model_input_names=MODEL_INPUT_NAMES,
    ).save_pretrained(str(aside))
    return len(entries)


def _wordpiece(lines: list[str], size: int, coverage: float, splitter: pre_tokenizers.PreTokenizer) -> Tokenizer:
    alphabet = _covered_characters((line.replace(" ", "") for line in lines), coverage)
    covered = set(alphabet)
    seen_words = {word for line in lines for word, _ in splitter.pre_tokenize_str(line)}
    inner = {character for word in seen_words for character in word[1:]} & covered
    # The trainer breaks ties by id, and numbers the ## characters in the order of a randomly seeded hash map: naming
    # them all beforehand is what makes two trainings equal.
    named = SPECIAL_TOKENS + [f"##{character}" for character in sorted(inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        min_frequency=2,  # a word seen once is no better than its pieces
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=named,
        show_progress=False,
        continuing_subword_prefix="##",
    )
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))  # pyright: ignore[reportCallIssue]
    learner.pre_tokenizer = splitter
    learner.train_from_iterator(lines, trainer, length=len(lines))
    entries = learner.get_vocab()
    if len(entries) < size:
        raise UserError(_too_large(size, len(entries)))
    if len(entries) > size:
        raise UserError(_too_small(size, len(entries)))
    tokenizer = Tokenizer(models.WordPiece(entries, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)  # cleanup would turn "do not" into "don't"
    return tokenizer


# --- characters and bytes: BPE without merges, which splits a whole sentence without a regular expression


def _characters(lines: list[str], size: int, coverage: float) -> Tokenizer:
    characters = _covered_characters(lines, coverage)[: size - len(SPECIAL_TOKENS)]
    entries = {text: i for i, text in enumerate(SPECIAL_TOKENS + characters)}
    tokenizer = Tokenizer(models.BPE(vocab=entries, merges=[], unk_token="[UNK]"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _bytes() -> Tokenizer:
    entries = {text: i for i, text in enumerate(SPECIAL_TOKENS + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=entries, merges=[], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _covered_characters(lines: Iterable[str], coverage: float) -> list[str]:
    """The commonest characters that make up `coverage` of the text, commonest first."""
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    wanted = coverage * counts.total()
    covered: list[str] = []
    seen = 0
    for character, count in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])):
        if seen >= wanted:
            break
        covered.append(character)
        seen += count
    return covered


def _too_large(size: int, supported: int) -> str:
    message = f"text.vocabulary.size = {size} is more than this text supports: at most {supported}"
    return f"{message}; lower it or give more text"


def _too_small(size: int, needed: int) -> str:
    return (
        f"text.vocabulary.size = {size} is too small: single characters alone need {needed} entries; "
        "raise it or lower text.vocabulary.character_coverage"
    )
