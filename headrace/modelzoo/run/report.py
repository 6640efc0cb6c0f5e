"""report.html of a run on records, from what its folder holds; records.json there says what was read."""

import json
from typing import Any

from headrace.modelzoo.run.job import Job
from headrace.modelzoo.run.records import OpenInput
from headrace.params import load_params
from headrace.report.page import write_report
from headrace.run_folder import RunFolder
from headrace.text.tokens import write_atomically


def note_records(run: RunFolder, opened: OpenInput) -> None:
    """Add an input section to records.json."""
    known = json.loads(run.records.read_text("utf-8")) if run.records.is_file() else {}
    write_atomically(run.records, json.dumps({**known, opened.where: _description(opened)}, indent=1).encode())


def report(job: Job) -> None:
    """Write the page anew: the params are those of the training, where there was one."""
    run = job.run
    params = load_params(run.params) if run.params.is_file() else job.params
    write_report(
        params,
        run,
        {
            "records": json.loads(run.records.read_text("utf-8")) if run.records.is_file() else {},
            "vocabulary": {"kind": "the records' own", "size": job.params.text.vocabulary.size},
        },
    )


def _description(opened: OpenInput) -> dict[str, Any]:
    records = opened.records
    return {
        "processor": opened.facts.data_processor,
        "layout": records.layout.name,
        "columns": {name: column.length for name, column in records.columns.items()},
        "num_records": len(records),
        "files": [[str(file.path), file.num_records, file.path.stat().st_size] for file in records.files],
        "notes": list(records.notes),
    }
