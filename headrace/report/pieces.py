"""Pieces of the page: strings of HTML from names and values."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def card(name: str, figure: str, note: str, main: bool = False) -> str:
    kind = "card main" if main else "card"
    return f'<div class="{kind}"><h3>{escape(name)}</h3><strong>{escape(figure)}</strong><p>{escape(note)}</p></div>'


def fact_list(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values; values are HTML."""
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in rows)}</dl>"


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def visible(text: str) -> str:
    """Text for the page; white space that nobody would see is named."""
    return escape(text) if text.strip() else "␣" * max(len(text), 1)


def join(config: dict[str, Any], between: str, *names: str) -> str:
    return between.join(f"{config[name]:,}" if isinstance(config.get(name), int) else "–" for name in names)


def figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def rough_duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
