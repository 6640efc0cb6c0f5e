"""One labelled example as it stands in the user's file, and the checks every reader shares."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.errors import InputError

HALF_A_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Row:
    """`fields` by the names of the file: JSON keys, table columns, or those a format defines (tokens and tags)."""

    fields: dict[str, Any]
    source: str
    """file:line; for SQuAD file: article/paragraph/question id"""


def field_of(row: Row, name: str, setting: str, types: type | tuple[type, ...] = str) -> Any:
    """The field `name`, of one of `types`; `setting` is the YAML key that chose the name."""
    value = row.fields.get(name)
    if isinstance(value, types):
        return value
    if name in row.fields:
        wanted = " or ".join(kind.__name__ for kind in (types if isinstance(types, tuple) else (types,)))
        raise InputError(f"{row.source}: field {name!r} is {shown(value)}, not a {wanted}.")
    found = ", ".join(row.fields) or "none"
    raise InputError(f"{row.source}: there is no field {name!r}; fields found: {found}; set {setting} to one of them.")


def shown(value: Any) -> str:
    """A value short enough for a message."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def refuse_half_pairs(value: Any, source: str) -> None:
    """JSON escapes can smuggle in half a surrogate pair, which is no character and no tokenizer reads."""
    if isinstance(value, str):
        if not value.isascii() and (found := HALF_A_PAIR.search(value)):
            raise InputError(
                f"{source}: {shown(value)} holds half a surrogate pair (U+{ord(found[0]):04X}), which is no character; "
                "write the character itself or both halves."
            )
    elif isinstance(value, dict):
        for content in value.values():
            refuse_half_pairs(content, source)
    elif isinstance(value, Sequence):
        for content in value:
            refuse_half_pairs(content, source)
