"""The section of predictions: figures of the best checkpoint, which labels are taken for which, and the worst examples."""

import json
from collections import Counter
from html import escape
from pathlib import Path
from typing import Any

from headrace.params import Params
from headrace.report.pieces import card, figure, table
from headrace.report.recorded import Records, number
from headrace.run_folder import RunFolder
from headrace.training.best import best_record

MOST_LABELS = 20
"""Columns of the table of confusions; rarer labels are one column."""
WORST = 20

# figure -> what it is called, what it says, whether it is a share
_SHOWN = {
    "eval/accuracy": ("Accuracy", "of held-out rows told rightly", True),
    "eval/f1": ("F1", "of what is found and what is there, held-out rows", True),
    "eval/exact_match": ("Exact match", "of answers that are wholly right", True),
    "eval/f1_macro": ("F1, mean over labels", "rare labels count as much as common ones", True),
    "eval/spearman": ("Rank correlation", "Spearman's, 1 is perfect", False),
    "eval/pearson": ("Correlation", "Pearson's, 1 is perfect", False),
    "eval/rouge1": ("ROUGE-1", "of summaries of held-out texts", True),
    "eval/perplexity": ("Perplexity", "of held-out completions", False),
}
_BLIND = {
    "commonest_label_share": "always the commonest label: {:.1%}",
    "blind_accuracy": "choosing blindly: {:.1%}",
    "lead_rouge1": "the first sentences alone: {:.1%}",
}


def labelled_cards(params: Params, evaluations: Records, metric: str) -> list[str]:
    """The figures of the best evaluation."""
    best = best_record(evaluations, metric) or {}
    beside = [text.format(best[name]) for name, text in _BLIND.items() if number(best, name) is not None]
    cards = []
    for name, (title, note, is_share) in _SHOWN.items():
        if (value := number(best, name)) is None:
            continue
        note += f". {'; '.join(beside)}" if beside and not cards else ""
        note += f". n = {best.get('n_examples', 0):,}, step {best.get('step', 0):,}" if not cards else ""
        cards.append(card(title, f"{value:.1%}" if is_share else figure(value), note, True))
    return cards


def labelled_section(params: Params, run: RunFolder) -> str:
    """Confusions where there are labels, and the rows that the model was surest of and wrong."""
    rows = _read(run.predictions)
    if not rows:
        return ""
    labelled = params.task.kind in ("classification", "multiple_choice")
    wrong = [row for row in rows if "truth" in row and row.get("truth") != _answer(row)]
    parts = [
        f"<p>{len(rows):,} held-out rows, as the best checkpoint sees them; all are in <code>predictions.jsonl</code>.</p>"
    ]
    if params.task.kind == "classification":
        parts.append(_confusions(rows))
    if labelled and wrong:
        wrong.sort(key=lambda row: -_sureness(row))
        cells = [
            [_text(row), escape(str(row["truth"])), escape(str(_answer(row))), f"{_sureness(row):.0%}"] for row in wrong
        ]
        parts.append(
            f"<h3>Worst examples</h3><p>The {min(WORST, len(wrong))} of {len(wrong):,} wrong rows it was surest of.</p>"
        )
        parts.append(_wide(["Row", "True", "Predicted", "Sure"], cells[:WORST]))
    elif params.task.kind == "regression":
        rows = sorted((row for row in rows if "truth" in row), key=lambda row: -abs(row["truth"] - row["label"]))
        cells = [[_text(row), f"{row['truth']:g}", f"{row['label']:.2f}"] for row in rows[:WORST]]
        parts.append(f"<h3>Worst examples</h3>{_wide(['Row', 'True', 'Predicted'], cells)}")
    elif not labelled:
        cells = [[_text(row), escape(_short(row.get("truth"))), escape(_short(_answer(row)))] for row in wrong[:WORST]]
        parts.append(f"<h3>Examples that differ from what is true</h3>{_wide(['Row', 'True', 'Predicted'], cells)}")
    return f"<section><h2>What it gets right and wrong</h2>{''.join(parts)}</section>"


def _confusions(rows: list[dict[str, Any]]) -> str:
    """A row a true label, a column a predicted one, the commonest labels first."""
    counts = Counter((str(row["truth"]), str(row["label"])) for row in rows if "truth" in row)
    totals = Counter[str]()
    for (truth, _), count in counts.items():
        totals[truth] += count
    names = [name for name, _ in totals.most_common(MOST_LABELS)]
    cells = []
    for truth in names:
        row = [counts[truth, guess] for guess in names]
        right = counts[truth, truth] / totals[truth]
        shown = [
            f"<b>{n:,}</b>" if guess == truth else f"{n:,}" if n else "" for guess, n in zip(names, row, strict=True)
        ]
        cells.append([escape(truth), *shown, f"{totals[truth] - sum(row):,}", f"{totals[truth]:,}", f"{right:.0%}"])
    headings = ["True \\ predicted", *names, "others", "rows", "right"]
    left = f"<p>The {MOST_LABELS} commonest of {len(totals):,} labels.</p>" if len(totals) > MOST_LABELS else ""
    return f"<h3>Which label is taken for which</h3>{left}{table(headings, cells)}"


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _answer(row: dict[str, Any]) -> Any:
    return next(
        (row[name] for name in ("label", "answer", "summary", "entities", "tags", "completion") if name in row), None
    )


def _sureness(row: dict[str, Any]) -> float:
    scores = row.get("scores", [])
    return max(scores.values() if isinstance(scores, dict) else scores, default=0.0)


def _text(row: dict[str, Any]) -> str:
    texts = [str(row[name]) for name in ("question", "text", "pair", "prompt", "context") if name in row]
    return "<br>".join(escape(_short(text)) for text in texts) + f"<small>{escape(str(row.get('source', '')))}</small>"


def _short(value: Any, most: int = 240) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[: most - 1] + "…"


def _wide(headings: list[str], rows: list[list[str]]) -> str:
    """A table of texts."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="samples"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )
