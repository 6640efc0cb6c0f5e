"""The spans of characters that labelled rows mark, and those that a vocabulary's tokens cannot give back exactly."""

from collections.abc import Sequence
from typing import Any

from headrace.labelled.spans import Unmappable, encode_with_offsets, unmappable
from headrace.tasks import question_answering, token_classification
from headrace.text.vocabulary import Vocabulary


def gold_spans(example: Any) -> tuple[str, list[tuple[int, int]]]:
    """The raw text of an example and its spans, each once; none for tasks that mark none."""
    match example:
        case question_answering.Example(context=text, answers=answers):
            spans = [(start, start + len(answer)) for start, answer in answers or ()]
        case token_classification.Example(text=text, entities=entities):
            spans = [(entity.start, entity.stop) for entity in entities or ()]
        case _:
            return "", []
    return text, list(dict.fromkeys(spans))


def unmappable_spans(examples: Sequence[Any], vocabulary: Vocabulary) -> list[tuple[str, Unmappable]]:
    """Spans whose tokens do not give exactly their text back, each with that text, and why."""
    marked = [(example.source, *gold_spans(example)) for example in examples]
    marked = [(source, text, spans) for source, text, spans in marked if spans]
    encoded = encode_with_offsets(vocabulary, [text for _, text, _ in marked])
    return [
        (text[found.span[0] : found.span[1]], found)
        for (source, text, spans), tokens in zip(marked, encoded, strict=True)
        for found in unmappable(text, tokens, spans, source)
    ]
