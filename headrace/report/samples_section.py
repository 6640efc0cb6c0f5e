"""The section of what the model writes: into blanks, or after a beginning."""

from html import escape

from headrace.report.pieces import visible
from headrace.report.recorded import Records


def samples_section(samples: Records, language: str) -> str:
    if samples and "prompt" in samples[0]:
        return _continuations(samples, language)
    rows = []
    for sample in samples:
        before, _, after = str(sample.get("text", "")).partition("[MASK]")
        truth = sample.get("truth")
        text = f'{escape(before)}<span class="blank">{visible(truth) if truth else ""}</span>{escape(after)}'
        guesses = "".join(_guess(str(word), float(share), truth) for word, share in sample.get("guesses", [])[:5])
        rows.append(f'<tr><td lang="{language}">{text}</td><td class="guesses" lang="{language}">{guesses}</td></tr>')
    if not rows:
        return ""
    return (
        "<section><h2>What the model fills into a blank</h2>"
        "<p>The model reads each sentence with the marked place hidden and gives its five likeliest tokens, with their "
        "probability. A filled-in place shows what the held-out text has there, green where it is among the guesses; an "
        "empty one is a question of the user's.</p>"
        '<div class="scroll"><table class="samples"><thead><tr><th>Sentence</th><th>Guesses</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _continuations(samples: Records, language: str) -> str:
    rows = "".join(
        f'<tr><td lang="{language}"><b>{escape(str(sample["prompt"]))}</b>{escape(str(sample.get("text", "")))}</td></tr>'
        for sample in samples
    )
    return (
        "<section><h2>How the model goes on</h2><p>Bold: the beginnings it was given.</p>"
        f'<div class="scroll"><table class="samples"><tbody>{rows}</tbody></table></div></section>'
    )


def _guess(word: str, share: float, truth: str | None) -> str:
    right = " right" if truth is not None and word == truth else ""
    return (
        f'<span class="guess{right}"><b>{visible(word)}</b><i>{share:.1%}</i>'
        f'<s style="width:{max(0.0, min(share, 1.0)) * 100:.1f}%"></s></span>'
    )
