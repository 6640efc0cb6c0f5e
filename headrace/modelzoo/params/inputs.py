"""The input sections: what records are read and how; what our text and task sections hold of it goes there."""

from dataclasses import dataclass
from itertools import pairwise

from headrace.errors import UserError
from headrace.modelzoo.params.keys import Taken
from headrace.modelzoo.params.parts import Parts
from headrace.modelzoo.params.read import expand, find
from headrace.modelzoo.vocabulary import MODEL_SUFFIXES, entries_of

# Line counts of the vocabulary files that came with the tool (R_1.6.1 and Release_1.8.0, transformers/vocab).
SHIPPED_VOCABULARIES = {
    "google_research_uncased_L-12_H-768_A-12.txt": 30_522,
    "google_research_cased_L-12_H-768_A-12.txt": 28_996,
    "google_research_wwm_uncased_L-24_H-1024_A-16.txt": 30_522,
    "uncased_pubmed_abstracts_and_fulltext_vocab.txt": 30_522,
    "uncased_pubmed_abstracts_only_vocab.txt": 28_895,
    "Pubmed_fulltext_vocab.txt": 30_522,
    "wikitext-103_50k_clean.txt": 50_000,
}


@dataclass(frozen=True)
class InputFacts:
    """One input section; our params have no place for records."""

    data_processor: str | None
    data_dir: tuple[str, ...]
    """Folders or files, as found from here, from the task's folder or from beside the file; as written where nothing is there."""
    batch_size: int | None
    sequence_length: int | None
    max_predictions: int | None
    shuffle: bool
    shuffle_seed: int | None
    repeat: bool
    drop_last: bool
    vocab_file: str | None
    lowercase: bool
    is_training: bool
    mask_rate: float
    whole_words: bool
    add_special_tokens: bool | None = None
    max_cls_tokens: int | None = None
    label_vocab_file: str | None = None
    loss_per: str | None = None
    """As task.loss_per, where this input's masked-LM loss is divided otherwise than the training input's; None = as there."""
    loss_weight: float = 1.0
    """Beside loss_per."""
    tokens_per_byte: float | None = None
    """What eval/bits_per_byte of a TensorFlow GPT takes for this data."""


LOWERCASE_UNLESS_TOLD = ("Sst2DataProcessor", "MnliDataProcessor")
"""Those of TensorFlow's classifier, as in the tool."""

# The Pile, table 7 (Gao et al. 2020, arXiv 2101.00027); R_1.6.1 common/tf/metrics/bits_per_x.py.
TOKENS_PER_BYTE = {"pile": 0.29335, "owt": 0.2434}


def input_facts(taken: Taken | None, parts: Parts, training: bool) -> InputFacts | None:
    """The facts of an input section, None where there is none."""
    if taken is None:
        return None
    folders = taken.get("data_dir") or ([taken["data_file"]] if taken.has("data_file") else [])
    taken.has("data_file")
    is_training = taken.get("is_training", training)
    return InputFacts(
        data_processor=taken["data_processor"],
        data_dir=tuple(located_path(each, parts) for each in folders),
        batch_size=taken["batch_size"],
        sequence_length=taken["max_sequence_length"],
        max_predictions=taken["max_predictions_per_seq"],
        shuffle=taken["shuffle"] if taken.has("shuffle") else is_training,
        shuffle_seed=taken["shuffle_seed"],
        repeat=taken["repeat"] if taken.has("repeat") else is_training,
        drop_last=taken["drop_last"],
        vocab_file=located_path(taken["vocab_file"], parts) if taken.has("vocab_file") else None,
        lowercase=taken["do_lower"] if taken.has("do_lower") else taken["data_processor"] in LOWERCASE_UNLESS_TOLD,
        is_training=is_training,
        mask_rate=taken["masked_lm_prob"],
        whole_words=taken["mask_whole_word"],
        add_special_tokens=taken["add_special_tokens"],
        max_cls_tokens=taken["max_cls_tokens"],
        label_vocab_file=taken["label_vocab_file"],
        tokens_per_byte=_tokens_per_byte(folders, taken, parts, training),
    )


def _tokens_per_byte(folders: list[str], taken: Taken, parts: Parts, training: bool) -> float | None:
    """By what data_dir names, as in the tool."""
    if not parts.kind.tensorflow or parts.kind.family == "bert" or (training and parts.eval is not None):
        return None
    found = next((name for name in TOKENS_PER_BYTE if any(name in folder for folder in folders)), None)
    if found is None:
        parts.notes.add(
            f"{taken.at('data_dir')}: names neither pile nor owt, so eval/bits_per_byte counts bits per token, as in the tool"
        )
        return 1.0
    return TOKENS_PER_BYTE[found]


def located_path(written: str, parts: Parts) -> str:
    found = find(written, parts.yaml_path)
    return str(found) if found is not None else expand(written)


def vocabulary_size(parts: Parts, source: Taken) -> tuple[int, str]:
    """The number of ids, and where it is written.

    model.vocab_size, else the input's vocab_size, else the lines of vocab_file. Raises UserError where none tells.
    """
    model = parts.model
    if not parts.kind.tensorflow and model["vocab_size"] is not None:
        source.has("vocab_size")
        return model["vocab_size"], model.at("vocab_size")
    if source.has("vocab_size"):
        return source["vocab_size"], source.at("vocab_size")
    if not source.has("vocab_file"):
        raise UserError(f"{source.path}.vocab_size: is required where there is neither model.vocab_size nor vocab_file")
    written, at = source["vocab_file"], source.at("vocab_file")
    found = find(written, parts.yaml_path)
    if found is not None and (found.is_dir() or found.suffix in MODEL_SUFFIXES):
        return len(entries_of(found).texts), f"{at} ({found.name}, its entries)"
    if found is not None and found.is_file():
        with found.open("rb") as file:
            return sum(1 for _ in file), f"{at} ({found.name}, its lines)"
    name = written.rsplit("/", 1)[-1]
    if name in SHIPPED_VOCABULARIES:
        parts.notes.add(
            f"{at} = {written!r}: not found; its {SHIPPED_VOCABULARIES[name]:,} entries are known, because it came with the tool. "
            f"To read raw text with it, put it there"
        )
        return SHIPPED_VOCABULARIES[name], f"{at} ({name}, as it came with the tool)"
    raise UserError(f"{at} = {written!r}: no such file, so the vocabulary's size is unknown; put it there, or give its path or "
                    f"its size: {source.path}.vocab_file=PATH or {source.path}.vocab_size=N")  # fmt: skip


def buckets(taken: Taken, length: int) -> list[int] | None:
    """Row lengths to pad to, from boundaries or their number; the longest row is always possible."""
    given = taken["buckets"]
    if given is None or given == 1:
        return None
    bounds = [int((i + 1) * length / given) for i in range(given - 1)] if isinstance(given, int) else list(given)
    if any(b <= a for a, b in pairwise(bounds)) or (bounds and not 0 < bounds[0] <= bounds[-1] < length):
        raise UserError(
            f"{taken.at('buckets')} = {given}: should rise between 0 and max_sequence_length = {length}, both excluded"
        )
    return [*bounds, length]
