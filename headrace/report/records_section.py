"""The section of records: what files a run read its examples from, where it was no text of ours."""

from html import escape
from typing import Any

from headrace.params import Params
from headrace.report.inspect import size_text
from headrace.report.pieces import fact_list, table


def records_section(report: dict[str, Any]) -> str:
    """report["records"]: for each input section its processor, layout, columns, files (name, records, bytes) and notes."""
    parts = []
    for name, each in report["records"].items():
        files = each.get("files", [])
        rows = [[escape(str(path)), f"{records:,}", size_text(num_bytes)] for path, records, num_bytes in files[:20]]
        if len(files) > 20:
            rest = files[20:]
            rows.append([f"and {len(rest):,} more", f"{sum(f[1] for f in rest):,}", size_text(sum(f[2] for f in rest))])
        facts = [
            ("Records", f"{each.get('num_records', 0):,}"),
            ("Read as", escape(f"{each.get('layout', '–')} ({each.get('processor', '–')})")),
            ("Columns", escape(", ".join(f"{key} {length}" for key, length in each.get("columns", {}).items()))),
        ]
        notes = "".join(f"<li>{escape(str(note))}</li>" for note in each.get("notes", []))
        parts.append(
            f"<h3>{escape(name)}</h3>{fact_list(facts)}{table(['File', 'Records', 'Size'], rows)}"
            + (f"<ul>{notes}</ul>" if notes else "")
        )
    return f"<section><h2>The records</h2>{''.join(parts)}</section>"


def record_facts(params: Params, report: dict[str, Any]) -> list[tuple[str, str]]:
    """The short list beside the model."""
    inputs = report["records"]
    facts = [
        (escape(name), f"{each.get('num_records', 0):,} records in {len(each.get('files', [])):,} files: "
                       f"{escape(str(each.get('layout', '–')))}")
        for name, each in inputs.items()
    ]  # fmt: skip
    divisor = "their number" if params.task.loss_per == "target" else "the batch's examples"
    weight = f", × {params.task.loss_weight:g}" if params.task.loss_weight != 1.0 else ""
    return [*facts, ("Loss", f"summed over predicted tokens, divided by {divisor}{weight}")]
