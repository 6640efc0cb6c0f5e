"""report.html: one self-contained page that tells a run to somebody who was not there.

    params, metrics, evaluations, samples, phases.json, plan.json, the tokens' input report, newest checkpoint
        ->  report.html

Whatever is missing (no evaluations, no samples, training still going on) leaves its section out or says so. Nothing is
loaded from elsewhere: charts are inline SVG, there is no script, and a content policy in the page forbids both.
"""

import statistics
from html import escape
from typing import Any

from headrace.params import Params, dump_params
from headrace.report import charts
from headrace.report.curves import curves_section
from headrace.report.input_section import input_section, text_facts
from headrace.report.inspect import count_parameters
from headrace.report.labelled_section import labelled_cards, labelled_section
from headrace.report.pieces import card, fact_list, figure, join, rough_duration, table
from headrace.report.plan_section import plan_section
from headrace.report.recorded import Records, last_of_each_step, number, points, read_dict, read_list
from headrace.report.records_section import record_facts, records_section
from headrace.report.samples_section import samples_section
from headrace.report.style import CSS
from headrace.run_folder import RunFolder
from headrace.tasks import labelled_task_of
from headrace.text.tokens import write_atomically
from headrace.training.optimizers import describe_optimizer
from headrace.training.records import read_records


def write_report(params: Params, run: RunFolder, input_report: dict[str, Any]) -> None:
    """Write run.report from what the run folder holds now. input_report: the report in the tokens' manifest, or {"records":
    see `records_section`} of a run that reads records."""
    metrics = read_records(run.metrics)
    evaluations = last_of_each_step(read_records(run.evaluations))
    samples = read_list(run.samples)
    sections = [
        _head(params, run, metrics),
        _headline(params, metrics, evaluations, input_report),
        labelled_section(params, run) if params.data is not None else "",
        samples_section(samples, params.text.language),
        _what(params, run, metrics, input_report),
        curves_section(params, metrics, evaluations),
        plan_section(read_dict(run.plan)),
        _input(params, run, input_report),
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


def _input(params: Params, run: RunFolder, report: dict[str, Any]) -> str:
    if params.data is not None:
        return ""
    if "records" in report:
        return records_section(report)
    return input_section(report, read_list(run.phases), params.text.language)


def _headline(params: Params, metrics: Records, evaluations: Records, report: dict[str, Any]) -> str:
    cards = []
    if params.data is not None:
        metric = params.evaluation.metric or labelled_task_of(params).metric(params)
        return f'<section class="cards">{"".join(labelled_cards(params, evaluations, metric) + _speed_cards(metrics))}</section>'
    last = evaluations[-1] if evaluations else {}
    if (accuracy := number(last, "eval/accuracy_masked_lm")) is not None:
        n = f"n = {last.get('n_predicted_tokens', 0):,}, in {last.get('n_examples', 0):,} held-out examples"
        cards.append(
            card(
                "Masked-LM accuracy", f"{accuracy:.1%}", f"of hidden tokens the model's first guess is right. {n}", True
            )
        )
    if (accuracy := number(last, "eval/accuracy")) is not None:
        n = f"n = {last.get('n_predicted_tokens', 0):,}, in {last.get('n_examples', 0):,} held-out windows"
        note = f"of tokens the model's first guess is right, from the tokens before. {n}"
        cards.append(card("Next-token accuracy", f"{accuracy:.1%}", note, True))
    perplexity = number(last, "eval/mlm_perplexity")
    if (perplexity := perplexity if perplexity is not None else number(last, "eval/perplexity")) is not None:
        size = report.get("vocabulary", {}).get("size")
        which = "a hidden" if "eval/mlm_perplexity" in last else "the next"
        blind = f"; knowing nothing is {size:,}" if size else ""
        cards.append(
            card(
                "Perplexity",
                figure(perplexity),
                f"choices it is torn between at {which} token; 1 is certain{blind}",
                True,
            )
        )
    if (accuracy := number(last, "eval/accuracy_cls")) is not None:
        share = last.get("is_next_share", 0.5)
        cards.append(
            card(
                "Next-sentence accuracy",
                f"{accuracy:.1%}",
                f"the commoner answer alone scores {max(share, 1 - share):.1%}. n = {last.get('n_pairs', 0):,} pairs",
                True,
            )
        )
    if not evaluations:
        why = "no evaluation was asked for" if "records" in report else "no document is held out"
        cards.append(card("Accuracy", "–", f"not evaluated: {why}, or training has not got there"))
    if (unknown := number(report, "unknown_token_rate")) is not None:
        cards.append(card("Unknown tokens", f"{unknown:.2%}", "of the text the vocabulary has no token for"))
    return f'<section class="cards">{"".join(cards + _speed_cards(metrics))}</section>'


def _speed_cards(metrics: Records) -> list[str]:
    cards = []
    if speeds := [y for _, y in points(metrics, "tokens_per_s")]:
        cards.append(card("Speed", f"{statistics.median(speeds):,.0f}", "tokens a second in training (median)"))
    if seconds := sum(y for _, y in points(metrics, "interval_s")):
        cards.append(card("Training time", rough_duration(seconds), "evaluation left out"))
    return cards


def _what(params: Params, run: RunFolder, metrics: Records, report: dict[str, Any]) -> str:
    config = read_dict(run.model / "config.json")
    parameters = count_parameters(run.model)
    model = [
        (
            "Kind",
            f"{config.get('model_type', 'bert').upper()}, {'preset ' if params.model.preset else ''}{params.model.name}",
        ),
        ("Parameters", f"{parameters:,}" if parameters else "no checkpoint yet"),
        ("Layers × width", join(config, " × ", "num_hidden_layers", "hidden_size")),
        ("Attention heads", join(config, "", "num_attention_heads")),
        ("Feed-forward width", join(config, "", "intermediate_size")),
        ("Longest sequence", join(config, "", "max_position_embeddings") + " tokens"),
        ("Optimizer", describe_optimizer(params)),
        ("Vocabulary", "{kind}, {size:,} entries".format(**{"kind": "–", "size": 0, **report.get("vocabulary", {})})),
    ]
    on_records = "records" in report
    if params.data is not None:
        kind = read_dict(run.tokenizer / "vocabulary.json").get("kind", "–")
        model[-1] = ("Vocabulary", f"{kind}, {join(config, '', 'vocab_size')} entries")
    source, data = ("Records", record_facts(params, report)) if on_records else ("Text", text_facts(params, report))
    if params.data is not None:
        source, data = "Rows", _row_facts(params, run)
    rows = []
    for i, phase in enumerate(params.training.phases):
        here = [record for record in metrics if record.get("phase") == i]
        done = (here[-1]["step"] - sum(each.steps for each in params.training.phases[:i])) if here else 0
        rates = [y for _, y in points(here, "learning_rate")]
        losses = [y for _, y in points(here, "loss")][-20:]
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
        f'<div class="two"><div><h3>Model</h3>{fact_list(model)}</div><div><h3>{source}</h3>{fact_list(data)}</div></div>'
        f"<h3>Phases</h3>{table(headings, rows)}</section>"
    )


def _row_facts(params: Params, run: RunFolder) -> list[tuple[str, str]]:
    data = params.data
    assert data is not None
    first = next(iter(read_list(run.phases)), {})
    notes = [f"{count:,} {escape(reason)}" for reason, count in first.get("notes", {}).items() if count]
    labels = ", ".join((data.labels or [])[:12]) + (" …" if len(data.labels or []) > 12 else "")
    return [
        ("Task", escape(params.task.kind)),
        ("Trains on", f"{first.get('rows', 0):,} rows of {escape(', '.join(data.train))}"),
        ("Evaluated on", escape(", ".join(data.evaluation) or f"{data.held_out:.0%} of them, which never train")),
        ("Labels", f"{len(data.labels):,}: {escape(labels)}" if data.labels else "–"),
        ("Not whole", "; ".join(notes) or "nothing was cut"),
    ]


def _details(params: Params, run: RunFolder) -> str:
    return (
        "<section><h2>To go on from here</h2>"
        f"<p><code>tensorboard --logdir {escape(str(run.tensorboard))}</code> shows curves and a map of the tokens. "
        f"<code>{escape(str(run.model))}</code> is a Hugging Face model folder. "
        f"<code>headrace inspect {escape(str(run.root))}</code> checks that everything is whole.</p>"
        f"<details><summary>Params of this run, resolved</summary><pre>{escape(dump_params(params))}</pre></details>"
        "</section>"
    )
