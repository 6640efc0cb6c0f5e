"""report.html of a run on records, from what its folder holds; records.json there says what was read."""

import json

from headrace.modelzoo.fine_tuning.feature_set import FeatureSet
from headrace.modelzoo.run.job import Job
from headrace.modelzoo.run.records import OpenInput
from headrace.params import load_params
from headrace.report.page import write_report
from headrace.run_folder import RunFolder
from headrace.text.tokens import write_atomically


def note_records(run: RunFolder, opened: OpenInput | FeatureSet) -> None:
    """Add an input section to records.json."""
    known = json.loads(run.records.read_text("utf-8")) if run.records.is_file() else {}
    write_atomically(run.records, json.dumps({**known, opened.where: opened.description()}, indent=1).encode())


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
