"""The section of curves over optimizer steps."""

import itertools
from typing import Any

from headrace.params import Params
from headrace.report.charts import Series, legend, line_chart
from headrace.report.recorded import Records, points


def curves_section(params: Params, metrics: Records, evaluations: Records) -> str:
    boundaries = [
        (before["step"], f"phase {after['phase'] + 1}: length {params.training.phases[after['phase']].sequence_length}")
        for before, after in itertools.pairwise(metrics)
        if before.get("phase") != after.get("phase") and after.get("phase", 0) < len(params.training.phases)
    ]

    last_step = metrics[-1]["step"] if metrics else 0

    def chart(title: str, note: str, names: dict[str, str], records: Records = metrics, **options: Any) -> str:
        dots, smooth = records is evaluations, options.pop("smooth", False)
        series = [
            Series(name, points(records, key), dots and len(records) <= 60, smooth) for key, name in names.items()
        ]
        svg = line_chart(series, boundaries=boundaries, last_x=last_step, **options)
        return f"<figure><h3>{title}</h3><p>{note}</p>{legend(series)}{svg}</figure>" if svg else ""

    labelled = params.data is not None
    clip = params.training.optimizer.max_gradient_norm
    figures = [
        chart(
            "Training loss",
            "In nats, lower is better. Faint: each record; strong: running mean.",
            {
                "masked_lm_loss": "masked LM",
                "next_sentence_loss": "next sentence",
                "next_token_loss": "next token",
                "label_loss": "task",
            },
            smooth=True,
        ),
        chart(
            "Accuracy on held-out rows" if labelled else "Accuracy on held-out text",
            "Share told rightly, by each figure of the task."
            if labelled
            else "Share of hidden or next tokens (and of sentence pairs) told rightly.",
            {
                "eval/accuracy_masked_lm": "masked LM",
                "eval/accuracy_cls": "next sentence",
                "eval/accuracy": "accuracy" if labelled else "next token",
                "eval/f1": "F1",
                "eval/f1_macro": "F1, mean over labels",
                "eval/exact_match": "exact match",
                "eval/spearman": "Spearman",
                "eval/rouge1": "ROUGE-1",
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
        chart("Loss on held-out rows", "In nats, lower is better.", {"eval/loss": "loss"}, evaluations)
        if labelled
        else "",
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
