"""The report page and its charts: one whole file, nothing from elsewhere, everything escaped, never huge."""

import itertools
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from headrace.params import Params, dump_params, validate_params
from headrace.report.charts import (
    MAX_POINTS,
    Series,
    legend,
    line_chart,
    log_ticks,
    nice_ticks,
    running_mean,
    short,
    thin,
)
from headrace.report.page import write_report
from headrace.run_folder import RunFolder
from headrace.training.records import write_projector

INPUT_REPORT = {
    "files": ["text/<angle> & co.txt", "text/日本.txt"],
    "input_bytes": 1_234_567,
    "format": "sentence_per_line",
    "read": {"documents": 100, "dropped: empty document": 7, "long lines split": 2},
    "characters": 90_000,
    "train": {"documents": 90, "sentences": 900, "tokens": 50_000},
    "held_out": {"documents": 10, "sentences": 100, "tokens": 5_000},
    "dropped": {"dropped: sentence without tokens": 3},
    "duplicate_documents": 4,
    "unknown_token_rate": 0.0123,
    "characters_per_token": 1.64,
    "round_trips_tried": 20,
    "round_trips_lossy": 1,
    "lossy_examples": ["珍しい字<b>𠮷</b>"],
    "word_rule": "marks",
    "vocabulary": {"kind": "unigram", "size": 4000},
    "prepare_s": 12.0,
}


@pytest.fixture
def params(tmp_path) -> Params:
    phase = {"batch_size": 8, "learning_rate": {"kind": "constant", "value": 1e-3}}
    return validate_params(
        {
            "run": {"folder": str(tmp_path / "r <1>")},
            "text": {"input": "text/*.txt"},
            "model": {"preset": "bert-tiny"},
            "training": {
                "phases": [phase | {"sequence_length": 128, "steps": 60}, phase | {"sequence_length": 512, "steps": 40}]
            },
        }
    )


@pytest.fixture
def run(params) -> RunFolder:
    run = RunFolder(params.run.folder)
    run.create()
    return run


def metric(step: int, phase: int = 0, **changed) -> dict:
    return {
        "step": step,
        "phase": phase,
        "loss": 9 - step / 50,
        "masked_lm_loss": 8.3 - step / 50,
        "next_sentence_loss": 0.7,
        "learning_rate": 1e-3,
        "gradient_norm": 1.5 + math.sin(step),
        "loss_scale": None,
        "updated": True,
        "batch": "00000000",
        "examples": 8,
        "microbatches": 1,
        "tokens_per_s": 1000.0,
        "slots_per_s": 1250.0,
        "gemm_fraction": 0.4,
        "input_wait_fraction": 0.01,
        "interval_s": 6.0,
    } | changed


def evaluation(step: int, **changed) -> dict:
    return {
        "step": step,
        "phase": 0,
        "eval/accuracy_masked_lm": 0.25,
        "eval/mlm_perplexity": 87.6,
        "eval/accuracy_cls": 0.7,
        "eval/loss": 5.0,
        "n_examples": 50,
        "n_predicted_tokens": 751,
        "n_pairs": 50,
        "is_next_share": 0.42,
        "sequence_length": 128,
        "samples_per_s": 100.0,
    } | changed


def write_lines(path, records) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")


def written(params: Params, run: RunFolder, report: dict = INPUT_REPORT) -> str:
    write_report(params, run, report)
    page = run.report.read_text("utf-8")
    assert page.count("<svg") == page.count("</svg>")
    assert Checked.of(page).open == []
    assert not re.search(r"<script|<link|<img|@import|https?://|url\(", page)
    return page


class Checked(HTMLParser):
    """Fails on a tag that is closed out of order; collects the text."""

    VOID = ("meta", "rect", "line", "circle", "polyline", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    @classmethod
    def of(cls, page: str) -> "Checked":
        parser = cls()
        parser.feed(page)
        parser.close()
        return parser

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in self.VOID

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def text_of(page: str) -> str:
    return " ".join(Checked.of(page).text)


def test_says_the_figures_of_a_finished_run(params, run):
    write_lines(run.metrics, [metric(s, int(s > 60)) for s in range(10, 101, 10)])
    # step 60 was evaluated again later: of each step the last evaluation counts, and steps are in order
    write_lines(
        run.evaluations, [evaluation(60), evaluation(100, **{"eval/accuracy_masked_lm": 0.316}), evaluation(60)]
    )
    run.samples.write_text(
        json.dumps([{"text": "私は[MASK]を<i>する", "guesses": [["勉強", 0.43], [" ", 0.2]], "truth": "勉強"}]), "utf-8"
    )
    (run.root / "phases.json").write_text(
        json.dumps(
            [
                {
                    "phase": 0,
                    "examples": 77,
                    "tokens_used": 49_000,
                    "dropped": {"too long": 1_000},
                    "random_next_share": 0.5,
                }
            ]
        )
    )
    page = written(params, run)
    text = text_of(page)
    for figure in ("31.6%", "87.6", "n = 751", "70.0%", "58.0%", "1.23%", "1,000", "1 min", "finished, 100 steps"):
        assert figure in text, figure
    assert "phase 2: length 512" in text
    assert "49,000" in text and "1,000 too long" in text  # tokens in = used + dropped
    assert "7" in text and "empty document" in text and "sentence without tokens" in text
    assert 'class="guess right"' in page and "␣" in page and "<i>する" not in page
    assert "r &lt;1&gt;" in page and "&lt;angle&gt; &amp; co.txt" in page and "珍しい字&lt;b&gt;𠮷" in page
    assert dump_params(params).splitlines()[-1].strip() in text
    assert not list(run.root.glob("*.tmp"))


def test_works_with_nothing_recorded(params, run):
    page = written(params, run)
    assert "not evaluated" in page and "Nothing is recorded yet" in page and "at step 0 of 100" in page
    written(params, run, {})


def test_works_on_damaged_records_and_half_written_files(params, run):
    run.metrics.write_text(json.dumps(metric(10)) + "\n" + json.dumps(metric(20))[:40])
    run.samples.write_text('[{"text": "x')
    (run.root / "phases.json").write_text("3")
    page = written(params, run)
    assert "at step 10 of 100" in page and "into a blank" not in page


def test_names_the_step_of_a_loss_that_is_not_finite(params, run):
    write_lines(run.metrics, [metric(10), {"step": 17, "phase": 0, "loss": None, "batch": "0badf00d"}])
    assert "stopped at step 17" in written(params, run)


def plan_record(placement: str) -> dict:
    """plan.json of a run of two segments and one phase, with what was measured."""
    moved = {"read_bytes": {"weight": 3 << 20}, "written_bytes": {"weight": 1 << 20}} if placement == "disk" else {}
    moved = {"read_bytes": {}, "written_bytes": {}} | moved
    names = ("embeddings", "block <0>")
    return {
        "device": "cpu",
        "memory_bytes": 1 << 30,
        "needed_bytes": {"weights in flight": 100 << 20, "activations": 50 << 20},
        "disk_free_bytes": 8 << 30,
        "disk_bytes": {"live state": 345 << 20} if placement == "disk" else {},
        "machine": {"measured": False},
        "segments": [{"name": name, "placement": placement, "activations": "keep"} for name in names],
        "works": [
            {
                "name": "phase 0",
                "examples": 8,
                "length": 128,
                "bounds_s": {"compute": 0.5},
                "wait_s": 0.0,
                "step_s": 0.625,
                "segments": [moved | {"compute_s": 0.2, "update_s": 0.01}] * 2,
            }
        ],
        "measured": [
            {
                "name": "phase 0",
                "steps": 20,
                "counted_steps": 18,
                "step_s": 0.75,
                "rest_s": 0.05,
                "segments": [moved | {"wait_s": 0.1, "forward_s": 0.05, "backward_s": 0.2, "update_s": 0.03}] * 2,
            }
        ],
    }


def test_shows_the_plan_beside_what_was_measured(params, run):
    run.plan.write_text(json.dumps(plan_record("disk")))
    text = text_of(written(params, run))
    for figure in ("750 ms", "625 ms", "250 ms", "200 ms", "6.00 MiB", "345 MiB", "150 MiB", "of 1.00 GiB to use"):
        assert figure in text, figure
    assert "assumed, not measured" in text and "mean of 18 of 20 steps" in text and "block <0>" in text
    run.plan.write_text(json.dumps(plan_record("device")))
    text = text_of(written(params, run))
    assert "750 ms" in text and "150 MiB" in text
    assert "Segment by segment" not in text and "On disk at the most" not in text


def test_leaves_out_a_plan_that_is_not_whole(params, run):
    record = plan_record("disk")
    for broken in (record | {"works": [{"name": "phase 0"}]}, record | {"machine": None}, {"measured": 3}, {}):
        run.plan.write_text(json.dumps(broken))
        assert "Plan and measurement" not in written(params, run)
    run.plan.write_text(json.dumps({key: value for key, value in record.items() if key != "measured"}))
    assert "Nothing is measured yet" in written(params, run)


def test_a_long_run_stays_a_small_page(params, run):
    write_lines(run.metrics, [metric(s) for s in range(1, 20_001)])
    write_lines(run.evaluations, [evaluation(s) for s in range(1, 2001)])
    page = written(params, run)
    lines = re.findall(r'<polyline class="[^"]*" points="([^"]*)"', page)
    assert max(len(line.split()) for line in lines) <= MAX_POINTS
    assert len(page) < 1_000_000


def test_charts_of_few_and_odd_points():
    assert line_chart([Series("empty", [])]) == ""
    assert line_chart([Series("zero", [(1, 0.0)])], log=True) == ""
    for points in ([(5.0, 2.0)], [(0.0, 0.0), (1.0, 0.0)], [(1.0, -3.0), (9.0, -3.0)], [(0.0, 1e-30), (3.0, 1e30)]):
        for options in ({}, {"from_zero": True}, {"percent": True}):
            svg = line_chart([Series("<a>", points)], **options)
            assert "nan" not in svg and "inf" not in svg and "&lt;a&gt;" in svg
    assert line_chart([Series("a", [(1, 1e-3), (2, 1e6)])], log=True).count('class="grid"') >= 3
    assert legend([Series("a", [(0, 1)])]) == "" and "&lt;b" in legend([Series("a", [(0, 1)]), Series("<b", [(0, 1)])])


def test_names_of_crowded_boundaries_do_not_overlap():
    """Ten phases, three of them within a few steps: every one keeps its line and title, no two names of a row touch."""
    boundaries = [
        (x, f"phase {i}: length 128") for i, x in enumerate([100, 105, 110, 300, 400, 500, 700, 900, 995, 999])
    ]
    svg = line_chart([Series("a", [(0, 1.0), (1000, 2.0)])], boundaries=boundaries)
    assert svg.count('class="phase"') == svg.count("<title>") == 10
    names = re.findall(r'class="name" x="([\d.]+)" y="(\d+)">([^<]*)', svg)
    for row in {y for _, y, _ in names}:
        spans = [(float(x), float(x) + 5.5 * len(name)) for x, y, name in names if y == row]
        assert all(end < start for (_, end), (start, _) in itertools.pairwise(spans)) and spans[-1][1] < 560
    assert len(names) >= 5


def test_ticks_are_round_and_inside():
    assert nice_ticks(0, 100, 5) == [0, 20, 40, 60, 80, 100]
    assert nice_ticks(-0.3, 1.1, 5) == pytest.approx([0, 0.5, 1.0])
    assert log_ticks(0.5, 2000) == [1, 10, 100, 1000]
    assert log_ticks(3, 90) == [5, 10, 20, 50]
    assert [short(v) for v in (0, 0.25, 12, 1500, 20_000, 3.5e6, 0.0004, 4e-5, 1e-30)] == [
        "0", "0.25", "12", "1,500", "20k", "3.5M", "0.0004", "4e-5", "1e-30",
    ]  # fmt: skip


def test_thinning_keeps_ends_and_spikes():
    points = [(float(i), 0.0) for i in range(50_000)]
    points[12_345] = (12_345.0, 9.0)
    points[40_000] = (40_000.0, -9.0)
    thinned = thin(points)
    assert len(thinned) <= MAX_POINTS and thinned == sorted(thinned)
    assert {points[0], points[-1], points[12_345], points[40_000]} <= set(thinned)
    assert thin(points[:7]) == points[:7]


def test_running_mean_is_a_centred_mean():
    ys = np.random.default_rng(0).normal(size=200)
    means = running_mean(list(enumerate(ys.tolist())), share=0.05)  # type: ignore[arg-type]
    assert [y for _, y in means[5:-5]] == pytest.approx([ys[i - 5 : i + 6].mean() for i in range(5, 195)])
    assert means[0][1] == pytest.approx(ys[0])
    assert running_mean([(0.0, 1.0), (1.0, 2.0)]) == []


def test_projector_files(tmp_path):
    """One table row a label, whatever is in it; paths relative, so that the folder can move."""
    run = RunFolder(tmp_path)
    labels = ["。", "▁彼は", "a\tb", "line\nbreak", "\r", " ", "", "back\\slash", "\u2028", "\u3000"]
    vectors = np.arange(len(labels) * 3).reshape(len(labels), 3) / 7
    write_projector(run, vectors, labels)
    config = (run.tensorboard / "projector_config.pbtxt").read_text("utf-8")
    paths = re.findall(r'(?:tensor|metadata)_path: "(.*)"', config)
    assert len(paths) == 2 and all((run.tensorboard / path).is_file() and "/" not in path for path in paths)
    rows = (run.tensorboard / paths[1]).read_bytes().decode().removesuffix("\n").split("\n")
    assert len(rows) == len(labels) and not any("\t" in row or "\r" in row or not row.strip() for row in rows)
    assert rows[:3] == ["。", "▁彼は", "a\\tb"]
    table = [line.split("\t") for line in (run.tensorboard / paths[0]).read_text().splitlines()]
    assert np.allclose(np.array(table, float), vectors, rtol=1e-4)
