"""Tags of tokens, as for named entities: rows of words with IOB2 tags, or of a text with spans of characters.

    data.labels  disease, gene        outputs  O, B-disease, I-disease, B-gene, I-gene
    words        a word is learnt and judged by its first token (Devlin et al. 2019)
    text         every token has a tag: B- at the first of an entity, I- at the others

Shapes: R rows, T token slots, L tokens of a row with special ones, K tags, M labelled tokens.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PretrainedConfig, PreTrainedModel

from headrace.errors import InputError, UserError
from headrace.labelled.conll import is_tag, to_iob2
from headrace.labelled.features import Feature
from headrace.labelled.row import Row, field_of, shown
from headrace.labelled.single_or_pair import join_texts
from headrace.labelled.spans import Encoded, encode_with_offsets, span_of_tokens, unmappable
from headrace.labelled.tags import (
    Entity,
    entities_of,
    first_tokens,
    joined_words,
    runs_of_tags,
    tags_of_entities,
    tags_of_words,
)
from headrace.labelled.windows import Window
from headrace.params import Params
from headrace.tasks.labelled import data_of, head_config, inputs_of, is_decoder, names_of
from headrace.tasks.labelled import new_model as new_labelled_model
from headrace.tasks.metrics import metrics_of_seqeval
from headrace.text.batches import Batch, Microbatch
from headrace.text.vocabulary import Vocabulary

HEAD = ""
PEAK_LEARNING_RATE = 5e-5
CUT = "texts cut to the sequence length"
CUT_ENTITIES = "entities that were cut with them"
NO_FIRST_TOKEN = "words without a token of their own"
UNMAPPABLE = "entities of which tokens begin or end elsewhere"


@dataclass(frozen=True)
class Example:
    source: str  # file:line
    text: str
    words: tuple[str, ...] | None  # what the text was joined from; None: a row of characters
    tags: tuple[str, ...] | None = None  # of the words, IOB2; None: not known
    entities: tuple[Entity, ...] | None = None  # of the characters; None: not known


def metric(params: Params) -> str:
    return "eval/f1"


# --- rows -> features -------------------------------------------------------------------------------------------------


def parse(row: Row, params: Params, need_label: bool) -> Example:
    """Words where the row has them, else a text. Raises InputError for tags that fit no words, or spans no text."""
    fields = data_of(params).fields
    if fields.tokens in row.fields:
        return _parse_words(row, params, need_label)
    if fields.text not in row.fields:
        raise InputError(
            f"{row.source}: there is neither {fields.tokens!r} (words) nor {fields.text!r} (characters); fields found: "
            f"{', '.join(row.fields) or 'none'}; set data.fields.tokens or data.fields.text to one of them."
        )
    if need_label or row.fields.get(fields.spans) is not None:
        text, entities = entities_of(row, fields.text, fields.spans)
        return Example(row.source, text, None, entities=tuple(entities))
    return Example(row.source, field_of(row, fields.text, "data.fields.text"), None)


def _parse_words(row: Row, params: Params, need_label: bool) -> Example:
    fields, tags = data_of(params).fields, None
    words = field_of(row, fields.tokens, "data.fields.tokens", list)
    for word in words:
        if not isinstance(word, str):
            raise InputError(f"{row.source}: {fields.tokens} holds {shown(word)}, which is no text.")
    if need_label or row.fields.get(fields.tags) is not None:
        tags = field_of(row, fields.tags, "data.fields.tags", list)
        if len(tags) != len(words):
            raise InputError(f"{row.source}: {len(tags)} tags for {len(words)} words.")
        for tag in tags:
            if not isinstance(tag, str) or not is_tag(tag):
                raise InputError(f"{row.source}: {shown(tag)} is no tag; use O, B-TYPE or I-TYPE.")
        tags = tuple(to_iob2(tags))
    return Example(row.source, joined_words(words).text, tuple(words), tags)


def truth(example: Example) -> dict[str, Any]:
    if example.words is not None:
        known, true = {"tokens": list(example.words)}, example.tags and list(example.tags)
    else:
        known, true = {"text": example.text}, None
        if example.entities is not None:
            true = [_entity(example.text, entity) for entity in example.entities]
    return known | ({"truth": true} if true is not None else {})


def _entity(text: str, entity: Entity) -> dict[str, Any]:
    return {**entity._asdict(), "text": text[entity.start : entity.stop]}


def labels(examples: Sequence[Example], params: Params) -> list[str]:
    """The types of entities that occur, sorted. Raises UserError when there are none."""
    found = {kind for example in examples for kind in _types(example)}
    if not found:
        raise UserError(
            f"data.train: not one of the {len(examples):,} rows has an entity, so there is nothing to learn; give rows with "
            f"some, or name the types in data.labels"
        )
    return sorted(found)


def _types(example: Example) -> set[str]:
    return {tag[2:] for tag in example.tags or () if tag != "O"} | {entity.type for entity in example.entities or ()}


def tag_names(params: Params) -> list[str]:
    """The tags in the order of the model's outputs; labels with O among them are the tags themselves."""
    if "O" in names_of(params):
        return names_of(params)
    return ["O", *(f"{part}-{name}" for name in names_of(params) for part in "BI")]


def _type_names(params: Params) -> list[str]:
    """The types of entities."""
    names = names_of(params)
    return list(dict.fromkeys(tag[2:] for tag in names if is_tag(tag) and tag != "O")) if "O" in names else names


def rows_each(params: Params) -> int:
    return 1


def features(
    examples: Sequence[Example], params: Params, vocabulary: Vocabulary, length: int, notes: Counter[str]
) -> list[Feature]:
    """One feature an example. Raises UserError for a type that is none of data.labels."""
    decoder, known, found = is_decoder(config(params, vocabulary)), set(_type_names(params)), []
    index = {tag: i for i, tag in enumerate(tag_names(params))}
    texts = encode_with_offsets(vocabulary, [example.text for example in examples])
    for k, (example, encoded) in enumerate(zip(examples, texts, strict=True)):
        for kind in sorted(_types(example) - known):
            raise UserError(
                f"{example.source}: type {kind!r} is none of those that are learnt ({', '.join(_type_names(params)[:12])}); "
                f"correct it, or name it in data.labels"
            )
        row, types, cut = join_texts(encoded.ids.tolist(), None, length, vocabulary, decoder)
        first = 0 if decoder else 1
        kept = len(row) - first - 1
        tokens, tags = _tags_of_tokens(example, encoded, notes)
        notes[CUT] += cut
        if cut:
            notes[CUT_ENTITIES] += sum(int(tokens[b - 1]) >= kept for _, b, _ in runs_of_tags(tags))
        inside = tokens < kept
        ids = np.array([index[tag] for tag in tags], np.int64)[inside]
        window = Window(row, types, 0, first, kept)
        found.append(Feature((row,), (types,), k, None, tokens[inside] + first, ids, encoded, window))
    return found


def _tags_of_tokens(example: Example, encoded: Encoded, notes: Counter[str]) -> tuple[np.ndarray, list[str]]:
    """(M,) places among the tokens of the text, rising, and the tag there."""
    if example.entities is not None:
        tags, kept = tags_of_entities(encoded, example.entities, notes)
        notes[UNMAPPABLE] += len(unmappable(example.text, encoded, [entity[:2] for entity in kept]))
        return np.arange(len(encoded)), tags
    if example.words is not None and example.tags is not None:
        tokens = first_tokens(joined_words(example.words), encoded)
        notes[NO_FIRST_TOKEN] += int((tokens < 0).sum())
        tags = [tag for tag, token in zip(example.tags, tokens, strict=True) if token >= 0]
        return tokens[tokens >= 0], tags
    return np.zeros(0, np.int64), []


# --- model ------------------------------------------------------------------------------------------------------------


def config(params: Params, vocabulary: Vocabulary | None) -> PretrainedConfig:
    return head_config(params, vocabulary, tag_names(params))


def new_model(config: PretrainedConfig) -> PreTrainedModel:
    return new_labelled_model("token_classification", config)


def freeze_unused(model: Any, params: Params) -> None:
    """All weights are used."""


def full_labels(params: Params, num_rows: int) -> np.ndarray:
    """There are none of whole examples."""
    return np.zeros(0, np.int64)


def training_loss(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, batch: Batch, run_head: Any = None
) -> tuple[Tensor, Tensor]:
    """This microbatch's share of the mean loss over the batch's labelled tokens, and its summed loss (1,), detached."""
    logits = model(**inputs_of(model, microbatch, device)).logits.flatten(0, 1)  # (R T, K)
    positions = torch.from_numpy(microbatch.target_positions).to(device, non_blocking=True)
    wanted = torch.from_numpy(microbatch.target_ids).to(device, non_blocking=True)
    loss = F.cross_entropy(logits.index_select(0, positions).float(), wanted, reduction="sum")
    return loss / batch.target_divisor, loss.detach()[None]


def losses(sums: Sequence[float], batch: Batch) -> dict[str, float | None]:
    return {"label_loss": sums[0] / batch.target_divisor}


def outputs(
    model: PreTrainedModel, microbatch: Microbatch, device: torch.device, run_head: Any = None
) -> list[np.ndarray]:
    """Logits (L, K) of each row."""
    logits = model(**inputs_of(model, microbatch, device)).logits.float().cpu().numpy()
    lengths = (microbatch.example_ids > 0).sum(1)
    return [row[:length] for row, length in zip(logits, lengths, strict=True)]


# --- outputs -> predictions -> figures --------------------------------------------------------------------------------


def predictions(
    outputs: Sequence[np.ndarray], features: Sequence[Feature], examples: Sequence[Example], params: Params
) -> list[dict[str, Any]]:
    """Tags of the words, or entities of the text: runs of tags of one type, scored by the mean of their tokens, as
    `pipeline("token-classification")` has them by aggregation_strategy="first" and "simple". What was cut is O."""
    names, found = tag_names(params), []
    for logits, feature, example in zip(outputs, features, examples, strict=True):
        encoded, window = feature.encoded, feature.window
        assert encoded is not None and window is not None
        shifted = np.exp(logits - logits.max(-1, keepdims=True))
        scores = (shifted / shifted.sum(-1, keepdims=True))[window.offset : window.offset + window.num_tokens]
        tags = [names[best] for best in scores.argmax(-1)]
        if example.words is not None:
            tags += ["O"] * (len(encoded) - len(tags))
            found.append({"tags": tags_of_words(joined_words(example.words), encoded, tags)})
            continue
        entities = []
        for a, b, kind in runs_of_tags(tags):
            start, stop = span_of_tokens(example.text, encoded, a, b)
            if start < stop:
                entity = _entity(example.text, Entity(start, stop, kind))
                entities.append({**entity, "score": float(scores[a:b].max(-1).mean())})
        found.append({"entities": entities})
    return found


def figures(
    outputs: Sequence[np.ndarray],
    predictions: Sequence[dict[str, Any]],
    features: Sequence[Feature],
    examples: Sequence[Example],
    params: Params,
) -> dict[str, float | None]:
    """Precision, recall and F1 over entities of all types, and F1 of each type, by seqeval. An entity is right when type
    and both ends are; all true entities count, also those that were cut off or that no tokens stand for."""
    sums = sum(_loss_sum(logits, feature) for logits, feature in zip(outputs, features, strict=True))
    num_targets = sum(len(feature.target_ids) for feature in features)
    pairs = [_comparable(example, guess) for example, guess in zip(examples, predictions, strict=True)]
    found: dict[str, float | None] = dict.fromkeys(("eval/f1", "eval/precision", "eval/recall"), 0.0)
    each: dict[str, float | None] = {}
    if any(tag != "O" for pair in pairs for tags in pair for tag in tags):
        report = metrics_of_seqeval().classification_report(
            [true for true, _ in pairs], [guess for _, guess in pairs], output_dict=True, zero_division=0
        )
        micro, names = report["micro avg"], [name for name in _type_names(params) if name in report]
        found = {
            "eval/f1": float(micro["f1-score"]),
            "eval/precision": float(micro["precision"]),
            "eval/recall": float(micro["recall"]),
        }
        each = {f"eval/f1/{name}": float(report[name]["f1-score"]) for name in names} if names[1:] else {}
    return {
        **found,
        "eval/loss": sums / num_targets if num_targets else None,
        **each,
        "n_examples": len(examples),
        "n_entities": sum(len(runs_of_tags(true)) for true, _ in pairs),
    }


def _loss_sum(logits: np.ndarray, feature: Feature) -> float:
    wanted = torch.from_numpy(feature.target_ids)
    return F.cross_entropy(torch.from_numpy(logits[feature.target_positions]).double(), wanted, reduction="sum").item()


def _comparable(example: Example, guess: dict[str, Any]) -> tuple[list[str], list[str]]:
    """True and predicted tags. Of a text: one place for each entity that is in either, so that entities may overlap."""
    if example.words is not None:
        return list(example.tags or ()), guess["tags"]
    true = set(example.entities or ())
    predicted = {Entity(entity["start"], entity["stop"], entity["type"]) for entity in guess["entities"]}
    places = sorted(true | predicted)
    sides = [[f"B-{place.type}" if place in side else "O" for place in places] for side in (true, predicted)]
    return sides[0], sides[1]
