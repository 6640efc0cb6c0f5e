"""SQuAD 1.1, SQuAD 2.0 and JSQuAD files -> one row a question."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from headrace.errors import InputError
from headrace.labelled.json_rows import parse_json, read_text
from headrace.labelled.row import Row, refuse_half_pairs, shown

_SHAPE = "SQuAD is {data: [{title, paragraphs: [{context, qas: [{id, question, answers: [{text, answer_start}]}]}]}]}"


def read_squad(path: Path, encoding: str = "auto") -> Iterator[Row]:
    """{"id", "question", "context", "answers": {"text": [...], "answer_start": [...]}, "is_impossible", "title"} and
    whatever else the question holds. Questions without answers, to predict, have empty lists."""
    tree = parse_json(path, read_text(path, encoding))
    articles = _part(tree, "data", list, f"{path}")
    for number, article in enumerate(articles):
        title = str(article.get("title", number)) if isinstance(article, dict) else str(number)
        where = f"{path}: {title}"
        for index, paragraph in enumerate(_part(article, "paragraphs", list, where)):
            place = f"{where}/{index}"
            context = _part(paragraph, "context", str, place)
            refuse_half_pairs(context, place)
            for question in _part(paragraph, "qas", list, place):
                yield _row(question, context, title, place)


def _row(question: Any, context: str, title: str, place: str) -> Row:
    text = _part(question, "question", str, place)
    id = question.get("id")
    if not isinstance(id, str | int):
        raise InputError(f"{place}: the question {shown(text)} has no id, by which predictions are matched.")
    source = f"{place}/{id}"
    refuse_half_pairs(question, source)
    given = question.get("answers", [])
    if not isinstance(given, list):
        raise InputError(f"{source}: answers is {shown(given)}, not a list; {_SHAPE}.")
    answers = {
        "text": [_part(answer, "text", str, source) for answer in given],
        "answer_start": [_part(answer, "answer_start", int, source) for answer in given],
    }
    impossible = question.get("is_impossible", False)
    if impossible and given:
        raise InputError(f"{source}: is_impossible is true, but there are answers: {shown(answers['text'])}.")
    check_answers(context, answers["text"], answers["answer_start"], source)
    rest = {name: value for name, value in question.items() if name not in ("answers", "is_impossible")}
    fields = {**rest, "id": str(id), "context": context, "answers": answers, "is_impossible": bool(impossible)}
    return Row({**fields, "title": title}, source)


def check_answers(context: str, texts: Sequence[str], starts: Sequence[int], source: str) -> None:
    """Refuses an answer whose text does not stand in the context where it says."""
    if len(texts) != len(starts):
        raise InputError(f"{source}: {len(texts)} answer texts but {len(starts)} values of answer_start.")
    for text, start in zip(texts, starts, strict=True):
        if not text:
            raise InputError(f"{source}: an answer is empty; a question without answer has no answers.")
        found = context[start : start + len(text)] if start >= 0 else ""
        if found == text:
            continue
        at = context.find(text)
        hint = f"it stands at {at}" if at >= 0 else "it stands nowhere in the context"
        raise InputError(
            f"{source}: answer_start = {start} of the answer {shown(text)}: the context has {shown(found)} there; {hint}."
        )


def _part(value: Any, name: str, kind: type, place: str) -> Any:
    if not isinstance(value, dict):
        raise InputError(f"{place}: {shown(value)} is not an object with {name!r}; {_SHAPE}.")
    if name not in value:
        raise InputError(f"{place}: there is no {name!r}; {_SHAPE}.")
    if not isinstance(value[name], kind) or isinstance(value[name], bool):
        raise InputError(f"{place}: {name} is {shown(value[name])}, not a {kind.__name__}; {_SHAPE}.")
    return value[name]
