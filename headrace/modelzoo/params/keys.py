"""Tables of keys: what a section may hold, and what becomes of each key.

A table is a tuple of Keys. `take` checks a section against it and returns what was given, typed, with the tool's defaults
beside it; docs/from-model-zoo.md prints the same tables. So no key can be dropped in silence: it is in a table with what
becomes of it, or it is refused.
"""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.errors import UserError

REQUIRED = "required"


@dataclass(frozen=True)
class Key:
    name: str
    kind: str
    """What its value is: bool, int, float, text, paths, ints, floats, any; `|` between several."""
    default: Any
    """What the tool takes when it is not given; REQUIRED, or None for nothing."""
    fate: Literal["used", "no effect", "only"]
    words: str
    """used: what it becomes; no effect: why; only: why nothing else than `allowed`."""
    allowed: tuple[Any, ...] = ()
    also: tuple[str, ...] = ()
    """Other spellings."""


def use(name: str, kind: str, default: Any, becomes: str, *also: str, allowed: tuple[Any, ...] = ()) -> Key:
    """A key that is honoured; with `allowed`, one of these values."""
    return Key(name, kind, default, "used", becomes, allowed, also)


def idle(name: str, reason: str, kind: str = "any") -> Key:
    """A key that is accepted and reported to be without effect."""
    return Key(name, kind, None, "no effect", reason)


def only(name: str, kind: str, default: Any, reason: str, *allowed: Any) -> Key:
    """A key whose other values cannot be honoured."""
    return Key(name, kind, default, "only", reason, allowed or (default,))


@dataclass(frozen=True)
class Given:
    value: Any
    path: str
    """Where in the YAML it stands."""


@dataclass
class Notes:
    """What the user should know, in order; keys without effect are gathered by reason."""

    lines: list[str] = field(default_factory=list)
    idle: dict[str, list[str]] = field(default_factory=dict)

    def add(self, line: str) -> None:
        if line not in self.lines:
            self.lines.append(line)

    def no_effect(self, path: str, reason: str) -> None:
        paths = self.idle.setdefault(reason, [])
        if path not in paths:
            paths.append(path)

    def all(self) -> tuple[str, ...]:
        return (*self.lines, *(f"{', '.join(paths)}: no effect; {reason}" for reason, paths in self.idle.items()))


@dataclass
class Taken:
    """A checked section: values by canonical name, and which were read."""

    path: str
    given: dict[str, Given]
    defaults: dict[str, Any]
    read: set[str] = field(default_factory=set)

    def __getitem__(self, name: str) -> Any:
        """The value, or the tool's default."""
        self.read.add(name)
        if name in self.given:
            return self.given[name].value
        return self.defaults[name]

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or default where it is not given or in none of the section's tables."""
        self.read.add(name)
        return self.given[name].value if name in self.given else default

    def has(self, name: str) -> bool:
        self.read.add(name)
        return name in self.given

    def where(self, name: str) -> str:
        """The YAML path, or that the tool's default is meant."""
        return self.given[name].path if name in self.given else f"the tool's default of {self.path}.{name}"

    def at(self, name: str) -> str:
        """The path at which the key stands or would stand."""
        return self.given[name].path if name in self.given else f"{self.path}.{name}"

    def unread(self) -> list[str]:
        return [given.path for name, given in self.given.items() if name not in self.read]


def located(tree: Mapping[str, Any], path: str) -> dict[str, Given]:
    """A section's entries with their paths."""
    return {str(key): Given(value, f"{path}.{key}" if path else str(key)) for key, value in tree.items()}


def section(value: Any, path: str) -> dict[str, Any]:
    """A mapping, empty where nothing stands; raises UserError for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{path} = {shown(value)}: should be a section with keys of its own")
    return value


def take(entries: Mapping[str, Given], path: str, table: Iterable[Key], notes: Notes) -> Taken:
    """Check a section against its table.

    Raises UserError: unknown key (with the nearest), wrong type, value not allowed, required key missing, two spellings
    of one key that disagree.
    """
    keys = tuple(table)
    by_name = {name: key for key in keys for name in (key.name, *key.also)}
    found: dict[str, Given] = {}
    for name, given in entries.items():
        key = by_name.get(name)
        if key is None:
            raise UserError(
                f"{given.path}: unknown key{nearest(name, by_name)} (valid keys: {', '.join(sorted(by_name))})"
            )
        if given.value is None:  # `cs_ip:` with nothing behind it
            continue
        value = typed(given.value, key.kind, given.path)
        if key.allowed and value not in key.allowed:
            allowed = " or ".join(str(each) for each in key.allowed)
            raise UserError(f"{given.path} = {shown(given.value)}: should be {allowed}; {key.words}")
        if key.fate == "no effect":
            notes.no_effect(given.path, key.words)
            continue
        if key.name in found and found[key.name].value != value:
            first = found[key.name]
            raise UserError(
                f"{given.path} = {shown(value)} and {first.path} = {shown(first.value)} disagree; leave one out"
            )
        found[key.name] = Given(value, given.path)
    for key in keys:
        if key.default == REQUIRED and key.fate == "used" and key.name not in found:
            raise UserError(f"{path}.{key.name}: is required and not given; it becomes {key.words}")
    taken = Taken(path, found, {key.name: None if key.default == REQUIRED else key.default for key in keys})
    taken.read |= {key.name for key in keys if key.fate == "only"}
    return taken


def typed(value: Any, kind: str, path: str) -> Any:
    """The value as what its kind says, numbers that YAML 1.1 took for text (1e-6) included."""
    for each in kind.split("|"):
        good, made = _as(value, each)
        if good:
            return made
    words = " or ".join(_WORDS[each] for each in kind.split("|"))
    raise UserError(f"{path} = {shown(value)}: should be {words}")


_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "text": "text",
    "paths": "a path or a list of paths",
    "ints": "a list of whole numbers",
    "floats": "a list of numbers",
    "any": "anything",
}


def _as(value: Any, kind: str) -> tuple[bool, Any]:
    match kind:
        case "any":
            return True, value
        case "bool":
            return isinstance(value, bool), value
        case "text":
            return isinstance(value, str), value
        case "paths":
            paths = [value] if isinstance(value, str) else value
            return isinstance(paths, list) and bool(paths) and all(isinstance(path, str) for path in paths), paths
        case "int":
            number = _number(value)
            return number is not None and number == int(number), int(number) if number is not None else None
        case "float":
            number = _number(value)
            return number is not None, number
        case "ints" | "floats":
            if not isinstance(value, list):
                return False, None
            made = [_as(each, kind[:-1]) for each in value]
            return all(good for good, _ in made), [each for _, each in made]
    raise AssertionError(kind)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
