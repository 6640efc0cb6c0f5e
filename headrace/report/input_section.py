"""The section of the text: what was read, dropped and made into tokens and examples."""

from html import escape
from typing import Any

from headrace.params import Params
from headrace.report.inspect import size_text
from headrace.report.pieces import fact_list, rough_duration, table
from headrace.report.recorded import Records

_EXAMPLES = {
    "sentence_pairs": "two sentences or passages, next-sentence prediction",
    "windows": "documents one after the other, cut at the sequence length",
}


def text_facts(params: Params, report: dict[str, Any]) -> list[tuple[str, str]]:
    """The short list beside the model: what it was trained on."""
    files = report.get("files", [])
    names = ", ".join(map(str, files[:4])) + (f" and {len(files) - 4:,} more" if len(files) > 4 else "")
    text, task = params.text, params.task
    train, held_out = report.get("train", {}), report.get("held_out", {})
    facts = [
        ("Files", escape(names)),
        ("Size, format", f"{size_text(report.get('input_bytes', 0))}, {escape(str(report.get('format', '–')))}"),
        ("Language", f"{text.language}; Unicode {text.unicode}{', lower-cased' if text.lowercase else ''}"),
        ("Trains on", f"{train.get('documents', 0):,} documents, {train.get('tokens', 0):,} tokens"),
        ("Evaluated on", f"{held_out.get('documents', 0):,} held-out documents, {held_out.get('tokens', 0):,} tokens"),
        ("An example", _EXAMPLES.get(task.examples, task.examples)),
        ("Hidden", f"{task.mask_rate:.0%} of tokens{', whole words' if task.whole_words else ''}"),
    ]
    if task.kind == "causal_lm":
        seen = "of its document alone" if task.isolate_documents else "in the window"
        facts[-1] = ("Predicted", f"every token from those before it {seen}")
    return facts


def input_section(report: dict[str, Any], phases: Records, language: str) -> str:
    if not report:
        return ""
    train, held_out = report.get("train", {}), report.get("held_out", {})
    rows = [
        [
            unit.capitalize(),
            *(
                f"{n:,}"
                for n in (train.get(unit, 0), held_out.get(unit, 0), train.get(unit, 0) + held_out.get(unit, 0))
            ),
        ]
        for unit in ("documents", "sentences", "tokens")
    ]
    tried, lossy = report.get("round_trips_tried", 0), report.get("round_trips_lossy", 0)
    facts = [
        ("Characters", f"{report.get('characters', 0):,}"),
        ("Characters a token", f"{report.get('characters_per_token', 0):.2f}"),
        ("Unknown tokens", f"{report.get('unknown_token_rate', 0):.3%}"),
        ("Duplicate documents", f"{report.get('duplicate_documents', 0):,}"),
        ("Exact round trips", f"{1 - lossy / max(tried, 1):.2%} of {tried:,} sentences tried"),
        ("Words are told by", escape(str(report.get("word_rule", "–")))),
        ("Prepared in", rough_duration(report.get("prepare_s", 0))),
    ]
    read = {**report.get("read", {}), **report.get("dropped", {})}
    known = {"documents"}
    dropped = [
        (escape(key.removeprefix("dropped: ")), f"{n:,}") for key, n in read.items() if key.startswith("dropped") and n
    ]
    noted = [
        (escape(key), f"{n:,}") for key, n in read.items() if not key.startswith("dropped") and n and key not in known
    ]
    examples = "".join(f"<li>{escape(str(text))}</li>" for text in report.get("lossy_examples", []))
    return (
        "<section><h2>The text</h2>"
        f'<div class="two"><div><h3>Read and split</h3>{table(["", "train", "held out", "all"], rows)}'
        f"<h3>Dropped</h3>{fact_list(dropped) if dropped else '<p>Nothing.</p>'}"
        f"{'<h3>Noted while reading</h3>' + fact_list(noted) if noted else ''}</div>"
        f"<div><h3>As tokens</h3>{fact_list(facts)}</div></div>{_balance(phases, train.get('tokens', 0))}"
        + (
            "<h3>Sentences that decode to something else</h3><p>Some that the vocabulary cannot give back exactly, "
            f'mostly for rare characters.</p><ul lang="{language}">{examples}</ul>'
            if examples
            else ""
        )
        + "</section>"
    )


def _balance(phases: Records, num_tokens: int) -> str:
    """Tokens in = used + dropped by reason, for each phase."""
    if not phases:
        return ""
    rows = []
    for phase in phases:
        dropped = phase.get("dropped") or {}
        share = phase.get("random_next_share")
        rows.append(
            [
                str(phase.get("phase", -1) + 1),
                f"{phase.get('tokens', num_tokens):,}",
                f"{phase.get('tokens_used', 0):,}",
                "<br>".join(f"{n:,} {escape(reason)}" for reason, n in dropped.items() if n) or "none",
                f"{phase.get('examples', 0):,}",
                f"{share:.1%}" if isinstance(share, int | float) else "–",
            ]
        )
    headings = ["Phase", "Training tokens", "= used", "+ dropped", "Examples an epoch", "Pairs with a random next"]
    return f"<h3>From tokens to examples</h3>{table(headings, rows)}"
