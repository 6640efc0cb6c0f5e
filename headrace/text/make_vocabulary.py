"""The first stage of prepare: the run's vocabulary, trained on a sample of its text or loaded."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.params import Params
from headrace.progress import progress, say
from headrace.run_folder import RunFolder, model_folder
from headrace.text.documents import clean_document
from headrace.text.sampling import Sample, reservoir_sample
from headrace.text.sentences import split_long_line, split_sentences
from headrace.text.source import anything_done, changes, documents_of, files_of
from headrace.text.tokens import document_hash, is_held_out, write_atomically
from headrace.text.vocabulary import (
    Vocabulary,
    extend_vocabulary,
    load_vocabulary,
    open_vocabulary,
    train_vocabulary,
)
from headrace.text_params import VocabularyParams

LONGEST_TRAINER_LINE_BYTES = 4_000  # SentencePiece drops lines over 4,192 bytes


def make_vocabulary(params: Params, run: RunFolder, paths: list[Path], text_format: str) -> Vocabulary:
    text, wanted = params.text, params.text.vocabulary
    settings: dict[str, Any] = {
        "vocabulary": _settings_of(wanted),
        "text": text.model_dump(mode="json", include={"unicode", "lowercase", "strip_accents"}),
    }
    load = wanted.load
    if load is None and params.model.init_from is not None:
        load = model_folder(params.model.init_from)
        settings["init_from"] = str(load)
    if load is None or wanted.extend:
        settings["files"] = files_of(paths)
    if causal := params.task.kind == "causal_lm":
        settings["task"] = params.task.kind
    record = run.root / "vocabulary.json"
    if record.is_file():
        made_with = json.loads(record.read_text("utf-8"))["settings"]
        if made_with == settings:
            return open_vocabulary(run.tokenizer)
        if anything_done(run.tokens):
            raise UserError(
                f"{run.tokenizer} was made with other settings: {changes(made_with, settings)}. Undo the change, choose "
                f"another run.folder, or delete {run.root}"
            )
    if load is not None:
        vocabulary = load_vocabulary(
            load,
            run.tokenizer,
            unicode=text.unicode if "unicode" in text.model_fields_set else None,  # else the tokenizer's own
            lowercase=text.lowercase,
            strip_accents=text.strip_accents,
            causal=causal or None if params.data is not None else causal,
        )
        if params.model.init_from is not None:
            _check_entries(params.model.init_from, load, vocabulary)
        report: dict[str, Any] = {"loaded": str(load)}
        if wanted.extend:
            sample = _sample(params, paths, text_format)
            before = vocabulary.size
            vocabulary = extend_vocabulary(run.tokenizer, sample.texts, wanted.extend, causal)
            report |= {"size_before": before, "sampled_characters": sample.sampled_characters}
            say(f"Vocabulary: {vocabulary.size - before:,} entries learnt from the text and added to {before:,}")
    else:
        sample = _sample(params, paths, text_format)
        say(
            f"Training a {wanted.kind} vocabulary on {sample.sampled_characters:,} of {sample.seen_characters:,} "
            f"characters ({len(sample.texts):,} lines, seed {params.run.seed})"
        )
        vocabulary, trained = train_vocabulary(
            sample.texts,
            run.tokenizer,
            kind=wanted.kind,
            size=wanted.size,
            unicode=text.unicode,
            lowercase=text.lowercase,
            strip_accents=text.strip_accents,
            character_coverage=wanted.character_coverage,
            causal=causal,
            k=wanted.k,
            overlapping=wanted.overlapping,
            binning=wanted.binning,
        )
        report = {
            "sampled_characters": sample.sampled_characters,
            "seen_characters": sample.seen_characters,
            "seen_lines": sample.seen_texts,
            **asdict(trained),
        }
        skipped = trained.lines_given - trained.lines_used
        say(f"Vocabulary: {vocabulary.size:,} entries; {skipped / max(trained.lines_given, 1):.2%} of lines skipped")
    write_atomically(record, json.dumps({"settings": settings, "report": report}, indent=1).encode())
    return vocabulary


def _sample(params: Params, paths: list[Path], text_format: str) -> Sample:
    wanted = params.text.vocabulary
    found = reservoir_sample(_sampled_sentences(params, paths, text_format), wanted.sample_characters, params.run.seed)
    if not found.texts:
        raise UserError(f"text.input = {params.text.input}: holds no text to train a vocabulary on")
    return found


def _settings_of(wanted: VocabularyParams) -> dict[str, Any]:
    """What decides the vocabulary; keys of other kinds are left out."""
    others = {"k", "overlapping", "binning", "extend"}
    used = {"kmer": {"k", "overlapping"}, "bins": {"binning"}}.get(wanted.kind, set())
    return wanted.model_dump(mode="json", exclude=others - used - ({"extend"} if wanted.extend else set()))


def _check_entries(init_from: Path, load: Path, vocabulary: Vocabulary) -> None:
    """Refuse a vocabulary whose ids mean other tokens than those the model's weights were trained with."""
    folder = model_folder(init_from)
    if folder == load:
        return
    with tempfile.TemporaryDirectory() as aside:
        try:
            theirs = load_vocabulary(folder, Path(aside) / "tokenizer", causal=None)
        except UserError:  # a model without a tokenizer: there is nothing to compare with
            return
        count = min(theirs.size, vocabulary.size)
        differing = [i for i in range(count) if theirs.token_text(i) != vocabulary.token_text(i)]
        if differing or vocabulary.size < theirs.size:
            first = differing[0] if differing else vocabulary.size
            here = repr(vocabulary.token_text(first)) if differing else "none"
            raise UserError(
                f"text.vocabulary.load = {load}: is another vocabulary than that of model.init_from = {str(init_from)!r}: "
                f"{len(differing):,} of {count:,} entries differ; id {first} is {here} here and {theirs.token_text(first)!r} "
                f"there. Leave text.vocabulary.load out"
            )


def _sampled_sentences(params: Params, paths: list[Path], text_format: str) -> Iterator[tuple[str, str]]:
    """(key, line) of every training sentence, short enough for the trainer."""
    text = params.text
    number = 0
    with progress("Reading text for the vocabulary", None, "characters") as meter:
        for document in documents_of(text, paths, text_format, Counter()):
            meter.advance(len(document.text))
            if is_held_out(document_hash(document.split_key), text.held_out):
                continue
            cleaned = clean_document(document, text_format)
            for sentence in split_sentences(cleaned, text.language, document.lines_are_sentences):
                for piece in split_long_line(sentence, LONGEST_TRAINER_LINE_BYTES):
                    number += 1
                    yield str(number), piece
