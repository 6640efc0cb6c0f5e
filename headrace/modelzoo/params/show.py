"""Our params as YAML, each value with where it comes from."""

from typing import Any

import yaml

from headrace.modelzoo.params.draft import OURS
from headrace.modelzoo.params.translate import Translation


def show(translation: Translation) -> str:
    """The notes as comments, then the params as YAML that `load_params` reads back to the same Params."""
    lines = [f"# {note}" for note in translation.notes]
    lines += _lines(translation.params.model_dump(mode="json"), "", 0, translation.origins)
    return "\n".join(lines) + "\n"


def _lines(value: Any, path: str, depth: int, origins: dict[str, str]) -> list[str]:
    out: list[str] = []
    for key, inner in value.items():
        below = f"{path}.{key}" if path else str(key)
        if inner is None and below not in origins:  # left out, as its default is to be
            continue
        out += _entry(f"{'  ' * depth}{key}:", inner, below, depth, origins)
    return out


def _entry(start: str, value: Any, path: str, depth: int, origins: dict[str, str]) -> list[str]:
    if isinstance(value, dict) and value and path not in origins:
        return [start, *_lines(value, path, depth + 1, origins)]
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        out = [start]
        for i, each in enumerate(value):
            first, *rest = _lines(each, f"{path}.{i}", depth + 1, origins)
            out += [f"{'  ' * depth}- {first.lstrip()}", *rest]
        return out
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**9).strip()
    return [f"{start} {text.removesuffix('...').strip()}  # {origins.get(path, OURS)}"]
