"""report.html: one self-contained page that tells a run to somebody who was not there.

    params, metrics, evaluations, samples, phases.json, the tokens' input report, newest checkpoint  ->  report.html

Whatever is missing (no evaluations, no samples, training still going on) leaves its section out or says so. Nothing is
loaded from elsewhere: charts are inline SVG, there is no script, and a content policy in the page forbids both.
"""

import itertools
import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from headrace.params import Params, dump_params
from headrace.report import charts
from headrace.report.charts import Point, Series, legend, line_chart
from headrace.report.inspect import count_parameters, size_text
from headrace.report.style import CSS
from headrace.run_folder import RunFolder
from headrace.text.tokens import write_atomically
from headrace.training.optimizers import describe_optimizer
from headrace.training.records import read_records

Records = list[dict[str, Any]]

_EXAMPLES = {
    "sentence_pairs": "two sentences or passages, next-sentence prediction",
    "windows": "documents one after the other, cut at the sequence length",
}


def write_report(params: Params, run: RunFolder, input_report: dict[str, Any]) -> None:
    """Write run.report from what the run folder holds now. input_report: the report in the tokens' manifest."""
    metrics = read_records(run.metrics)
    evaluations = _last_of_each_step(read_records(run.evaluations))
    samples = _read_list(run.samples)
    sections = [
        _head(params, run, metrics),
        _headline(metrics, evaluations, input_report),
        _samples(samples, params.text.language),
        _what(params, run, metrics, input_report),
        _curves(params, metrics, evaluations),
        _input(input_report, _read_list(run.root / "phases.json"), params.text.language),
        _details(params, run),
    ]
    title = f"{run.root.name}: training report"
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{escape(title)}</title><style>{charts.CSS}{CSS}</style>'
        f"</head><body><main>{''.join(sections)}</main></body></html>"
    )
    write_atomically(run.report, page.encode("utf-8", "replace"))


# --- sections


def _head(params: Params, run: RunFolder, metrics: Records) -> str:
    step, total = (metrics[-1]["step"] if metrics else 0), params.total_steps
    notice = ""
    if metrics and metrics[-1].get("loss") is None:
        state = f"stopped at step {step:,}"
        notice = (
            f"The loss or a gradient was not a finite number at step {step:,}, so training stopped before that update."
        )
    elif step < total:
        state = f"at step {step:,} of {total:,}"
        notice = "Training has not finished; this page shows how far it is."
    else:
        state = f"finished, {total:,} steps"
    when = f'<p class="notice">{notice}</p>' if notice else ""
    return f"<header><h1>{escape(run.root.name)}</h1><p>Headrace training report · {state}</p>{when}</header>"


def _headline(metrics: Records, evaluations: Records, report: dict[str, Any]) -> str:
    cards = []
    last = evaluations[-1] if evaluations else {}
    if (accuracy := _number(last, "eval/accuracy_masked_lm")) is not None:
        n = f"n = {last.get('n_predicted_tokens', 0):,}, in {last.get('n_examples', 0):,} held-out examples"
        cards.append(
            _card(
                "Masked-LM accuracy", f"{accuracy:.1%}", f"of hidden tokens the model's first guess is right. {n}", True
            )
        )
    if (accuracy := _number(last, "eval/accuracy")) is not None:
        n = f"n = {last.get('n_predicted_tokens', 0):,}, in {last.get('n_examples', 0):,} held-out windows"
        note = f"of tokens the model's first guess is right, from the tokens before. {n}"
        cards.append(_card("Next-token accuracy", f"{accuracy:.1%}", note, True))
    perplexity = _number(last, "eval/mlm_perplexity")
    if (perplexity := perplexity if perplexity is not None else _number(last, "eval/perplexity")) is not None:
        size = report.get("vocabulary", {}).get("size")
        which = "a hidden" if "eval/mlm_perplexity" in last else "the next"
        blind = f"; knowing nothing is {size:,}" if size else ""
        cards.append(
            _card(
                "Perplexity",
                _figure(perplexity),
                f"choices it is torn between at {which} token; 1 is certain{blind}",
                True,
            )
        )
    if (accuracy := _number(last, "eval/accuracy_cls")) is not None:
        share = last.get("is_next_share", 0.5)
        cards.append(
            _card(
                "Next-sentence accuracy",
                f"{accuracy:.1%}",
                f"the commoner answer alone scores {max(share, 1 - share):.1%}. n = {last.get('n_pairs', 0):,} pairs",
                True,
            )
        )
    if not evaluations:
        cards.append(_card("Accuracy", "–", "not evaluated: no document is held out, or training has not got there"))
    if (unknown := _number(report, "unknown_token_rate")) is not None:
        cards.append(_card("Unknown tokens", f"{unknown:.2%}", "of the text the vocabulary has no token for"))
    if speeds := [y for _, y in _points(metrics, "tokens_per_s")]:
        cards.append(_card("Speed", f"{statistics.median(speeds):,.0f}", "tokens a second in training (median)"))
    if seconds := sum(y for _, y in _points(metrics, "interval_s")):
        cards.append(_card("Training time", _duration(seconds), "evaluation left out"))
    return f'<section class="cards">{"".join(cards)}</section>'


def _samples(samples: Records, language: str) -> str:
    if samples and "prompt" in samples[0]:
        return _continuations(samples, language)
    rows = []
    for sample in samples:
        before, _, after = str(sample.get("text", "")).partition("[MASK]")
        truth = sample.get("truth")
        text = f'{escape(before)}<span class="blank">{_visible(truth) if truth else ""}</span>{escape(after)}'
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
        f'<span class="guess{right}"><b>{_visible(word)}</b><i>{share:.1%}</i>'
        f'<s style="width:{max(0.0, min(share, 1.0)) * 100:.1f}%"></s></span>'
    )


def _what(params: Params, run: RunFolder, metrics: Records, report: dict[str, Any]) -> str:
    config = _read_dict(run.model / "config.json")
    parameters = count_parameters(run.model)
    model = [
        (
            "Kind",
            f"{config.get('model_type', 'bert').upper()}, {'preset ' if params.model.preset else ''}{params.model.name}",
        ),
        ("Parameters", f"{parameters:,}" if parameters else "no checkpoint yet"),
        ("Layers × width", _join(config, " × ", "num_hidden_layers", "hidden_size")),
        ("Attention heads", _join(config, "", "num_attention_heads")),
        ("Feed-forward width", _join(config, "", "intermediate_size")),
        ("Longest sequence", _join(config, "", "max_position_embeddings") + " tokens"),
        ("Optimizer", describe_optimizer(params)),
        ("Vocabulary", "{kind}, {size:,} entries".format(**{"kind": "–", "size": 0, **report.get("vocabulary", {})})),
    ]
    files = report.get("files", [])
    names = ", ".join(map(str, files[:4])) + (f" and {len(files) - 4:,} more" if len(files) > 4 else "")
    text, task = params.text, params.task
    train, held_out = report.get("train", {}), report.get("held_out", {})
    data = [
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
        data[-1] = ("Predicted", f"every token from those before it {seen}")
    rows = []
    for i, phase in enumerate(params.training.phases):
        here = [record for record in metrics if record.get("phase") == i]
        done = (here[-1]["step"] - sum(each.steps for each in params.training.phases[:i])) if here else 0
        rates = [y for _, y in _points(here, "learning_rate")]
        losses = [y for _, y in _points(here, "loss")][-20:]
        rows.append(
            [
                str(i + 1),
                f"{phase.sequence_length:,}",
                f"{phase.batch_size:,}",
                f"{done:,}" if done == phase.steps else f"{done:,} of {phase.steps:,}",
                f"{done * phase.batch_size:,}",
                charts.short(float(f"{max(rates):.3g}")) if rates else "–",
                f"{statistics.fmean(losses):.3f}" if losses else "–",
            ]
        )
    headings = [
        "Phase",
        "Longest example (tokens)",
        "Examples a step",
        "Steps",
        "Examples",
        "Highest learning rate",
        "Loss at its end",
    ]
    return (
        "<section><h2>What was trained on what</h2>"
        f'<div class="two"><div><h3>Model</h3>{_facts(model)}</div><div><h3>Text</h3>{_facts(data)}</div></div>'
        f"<h3>Phases</h3>{_table(headings, rows)}</section>"
    )


def _curves(params: Params, metrics: Records, evaluations: Records) -> str:
    boundaries = [
        (before["step"], f"phase {after['phase'] + 1}: length {params.training.phases[after['phase']].sequence_length}")
        for before, after in itertools.pairwise(metrics)
        if before.get("phase") != after.get("phase") and after.get("phase", 0) < len(params.training.phases)
    ]

    last_step = metrics[-1]["step"] if metrics else 0

    def chart(title: str, note: str, names: dict[str, str], records: Records = metrics, **options: Any) -> str:
        dots, smooth = records is evaluations, options.pop("smooth", False)
        series = [
            Series(name, _points(records, key), dots and len(records) <= 60, smooth) for key, name in names.items()
        ]
        svg = line_chart(series, boundaries=boundaries, last_x=last_step, **options)
        return f"<figure><h3>{title}</h3><p>{note}</p>{legend(series)}{svg}</figure>" if svg else ""

    clip = params.training.optimizer.max_gradient_norm
    figures = [
        chart(
            "Training loss",
            "In nats, lower is better. Faint: each record; strong: running mean.",
            {"masked_lm_loss": "masked LM", "next_sentence_loss": "next sentence", "next_token_loss": "next token"},
            smooth=True,
        ),
        chart(
            "Accuracy on held-out text",
            "Share of hidden or next tokens (and of sentence pairs) told rightly.",
            {
                "eval/accuracy_masked_lm": "masked LM",
                "eval/accuracy_cls": "next sentence",
                "eval/accuracy": "next token",
            },
            evaluations,
            percent=True,
        ),
        chart(
            "Perplexity on held-out text",
            "Logarithmic scale, lower is better.",
            {"eval/mlm_perplexity": "perplexity", "eval/perplexity": "perplexity"},
            evaluations,
            log=True,
        ),
        chart(
            "Learning rate",
            "Size of an update, by the schedule of each phase.",
            {"learning_rate": "learning rate"},
            from_zero=True,
        ),
        chart(
            "Gradient norm",
            f"Before clipping{f' to {clip:g}' if clip else ' (none)'}; logarithmic scale.",
            {"gradient_norm": "gradient norm"},
            log=True,
            smooth=True,
            level=(clip, "clipped above") if clip else None,
        ),
        chart(
            "Throughput",
            "Tokens a second. Slots count padding too: the gap is padding.",
            {"tokens_per_s": "real tokens", "slots_per_s": "slots with padding"},
            from_zero=True,
        ),
        chart(
            "Use of the processor",
            "Model arithmetic as a share of this machine's measured matrix-product speed.",
            {"gemm_fraction": "share of measured GEMM"},
            from_zero=True,
            percent=True,
        ),
        chart(
            "Waiting for input",
            "Share of the time in which training waited for a batch; near 0 is good.",
            {"input_wait_fraction": "waiting"},
            from_zero=True,
            percent=True,
        ),
        chart("Loss scale", "fp16 only; halves when a gradient overflows.", {"loss_scale": "loss scale"}, log=True),
    ]
    if not any(figures):
        return "<section><h2>Curves</h2><p>Nothing is recorded yet.</p></section>"
    return (
        "<section><h2>Curves</h2><p>Over optimizer steps; point at a chart to read its values.</p>"
        f'<div class="charts">{"".join(figures)}</div></section>'
    )


def _input(report: dict[str, Any], phases: Records, language: str) -> str:
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
        ("Prepared in", _duration(report.get("prepare_s", 0))),
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
        f'<div class="two"><div><h3>Read and split</h3>{_table(["", "train", "held out", "all"], rows)}'
        f"<h3>Dropped</h3>{_facts(dropped) if dropped else '<p>Nothing.</p>'}"
        f"{'<h3>Noted while reading</h3>' + _facts(noted) if noted else ''}</div>"
        f"<div><h3>As tokens</h3>{_facts(facts)}</div></div>{_balance(phases, train.get('tokens', 0))}"
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
    return f"<h3>From tokens to examples</h3>{_table(headings, rows)}"


def _details(params: Params, run: RunFolder) -> str:
    return (
        "<section><h2>To go on from here</h2>"
        f"<p><code>tensorboard --logdir {escape(str(run.tensorboard))}</code> shows curves and a map of the tokens. "
        f"<code>{escape(str(run.model))}</code> is a Hugging Face model folder. "
        f"<code>headrace inspect {escape(str(run.root))}</code> checks that everything is whole.</p>"
        f"<details><summary>Params of this run, resolved</summary><pre>{escape(dump_params(params))}</pre></details>"
        "</section>"
    )


# --- pieces


def _card(name: str, figure: str, note: str, main: bool = False) -> str:
    kind = "card main" if main else "card"
    return f'<div class="{kind}"><h3>{escape(name)}</h3><strong>{escape(figure)}</strong><p>{escape(note)}</p></div>'


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values; values are HTML."""
    return f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in rows)}</dl>"


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="numbers"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _visible(text: str) -> str:
    """Text for the page; white space that nobody would see is named."""
    return escape(text) if text.strip() else "␣" * max(len(text), 1)


def _join(config: dict[str, Any], between: str, *names: str) -> str:
    return between.join(f"{config[name]:,}" if isinstance(config.get(name), int) else "–" for name in names)


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


# --- records


def _points(records: Records, key: str) -> list[Point]:
    """(step, value) of the records that have a finite value."""
    return [(record["step"], value) for record in records if (value := _number(record, key)) is not None]


def _number(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _last_of_each_step(evaluations: Records) -> Records:
    """By step; `headrace evaluate` may have evaluated a step again."""
    return sorted({record["step"]: record for record in evaluations}.values(), key=lambda record: record["step"])


def _read_list(path: Any) -> Records:
    return _read(path, lambda found: isinstance(found, list) and all(isinstance(each, dict) for each in found)) or []


def _read_dict(path: Any) -> dict[str, Any]:
    return _read(path, lambda found: isinstance(found, dict)) or {}


def _read(path: Any, fits: Callable[[Any], bool]) -> Any:
    """The JSON of a file, or None: what a run has not written yet, or not as expected, is left out of the page."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if fits(found) else None
