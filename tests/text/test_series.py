"""Tables become windows of scaled values, and bins of them a vocabulary that other programs read the same way."""

from collections import Counter

import numpy as np
import pytest
from transformers import AutoTokenizer

from headrace.errors import InputError, UserError
from headrace.params import validate_params
from headrace.run_folder import RunFolder
from headrace.text.document import SeriesOptions
from headrace.text.documents import read_documents
from headrace.text.prepare import prepare
from headrace.text.series import iter_series, scale_of, window_starts
from headrace.text.vocabulary import load_vocabulary, train_vocabulary
from headrace.text.vocabulary.bins import FIRST_BIN_ID, MISSING_ID, names_of

LONG = SeriesOptions("city", "hour", (), 4, 4, 1, 0)


def written(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    return path


def test_long_wide_and_parquet_tables_hold_the_same_series(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    long = written(tmp_path, 'city,hour,t,"rain, mm"\nA,1,1.5,0\nA,2,,0\nB,1,NA,-3e2\nB,2,7,1\n')
    found = {series.name: series.values.tolist() for series in iter_series(long, LONG)}
    assert list(found) == ["table.csv:A:t", "table.csv:A:rain, mm", "table.csv:B:t", "table.csv:B:rain, mm"]
    assert found["table.csv:B:rain, mm"] == [-300.0, 1.0] and np.isnan(found["table.csv:A:t"][1])
    wide = written(tmp_path, "hour;t;rain\n1;1.5;0\n2;;0\n")
    options = LONG._replace(id=None, values=("t",))
    (series,) = iter_series(wide, options)
    assert series.name == "table.csv:t" and series.last_time == "2" and series.source.endswith(":2")
    table = pyarrow.table({"hour": [1, 2], "t": [1.5, None], "rain": [0, 0]})
    parquet.write_table(table, tmp_path / "t.parquet")
    (same,) = iter_series(tmp_path / "t.parquet", options)
    np.testing.assert_array_equal(same.values, series.values)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("city,hour,t\nA,1,x\n", ":2: t = 'x' is no number"),
        ("city,hour,t\nA,1,inf\n", "infinite"),
        ("city,hour,t\nA,1\n", ":2: 2 fields"),
        ("city,hour,t\nA,1,1\nB,1,1\nA,2,1\n", ":4: series 'A' goes on here"),
        ("city,hour,t\nA,2024-01-02,1\nA,2024-01-01,1\n", ":3: time 2024-01-01 does not come after"),
        ("town,hour,t\nA,1,1\n", "text.series.id = 'city': no such column; found: town, hour, t"),
        ('city,hour,t\nA,1,"1\n', ":2: not a row of CSV"),
    ],
)
def test_tables_that_cannot_be_read_as_asked_are_refused_with_their_line(tmp_path, text, named):
    with pytest.raises(InputError, match=named):
        list(iter_series(written(tmp_path, text), LONG))


def test_windows_are_scaled_by_what_comes_before_their_horizon(tmp_path):
    values = [2, -2, 2, 100, 4, 4, 4, 8, 9, 9]
    path = written(tmp_path, "t\n" + "".join(f"{value}\n" for value in values))
    counts = Counter()
    options = SeriesOptions(None, None, (), 4, 4, 1, 2)  # the last two points are held out
    found = list(read_documents(path, "series", counts=counts, language="series", series=options))
    assert [document.text for document in found] == ["1 -1 1 50", "1 1 1 2"]
    assert {document.group for document in found} == {"table.csv:t"} and counts["points"] == 10
    assert (
        window_starts(10, 4, 3) == [0, 3, 6]
        and window_starts(11, 4, 3) == [0, 1, 4, 7]
        and window_starts(3, 4, 1) == [0]
    )
    assert scale_of(np.array([np.nan, -3.0, 1.0])) == 2 and scale_of(np.zeros(3)) == scale_of(np.full(2, np.nan)) == 1


@pytest.mark.parametrize("binning", ["quantile", "uniform"])
def test_bins_read_any_number_and_auto_tokenizer_those_of_bins(tmp_path, binning):
    draw = np.random.default_rng(0)
    lines = [" ".join(f"{x:.5g}" for x in draw.normal(size=100)) for _ in range(20)]
    vocabulary, report = train_vocabulary(
        lines, tmp_path / "v", kind="bins", size=70, binning=binning, unicode="none", causal=True
    )
    edges, centres = vocabulary.bin_edges, vocabulary.bin_centres
    assert report.size == vocabulary.size == 70 and len(centres) == 64 == len(edges) + 1
    assert (centres[:-1] < edges).all() and (edges < centres[1:]).all()
    ids = vocabulary.encode_batch(["nan -1e9 0 1e9", lines[0]])
    assert ids[0][0] == MISSING_ID and ids[0][1] == FIRST_BIN_ID and ids[0][3] == 69
    counts = np.bincount(vocabulary.encode_batch([" ".join(lines)])[0], minlength=70)[FIRST_BIN_ID:]
    assert (np.ptp(counts) <= 2) if binning == "quantile" else np.ptp(np.diff(edges)) < 1e-9
    text = vocabulary.decode(ids[1])
    assert AutoTokenizer.from_pretrained(tmp_path / "v")(text)["input_ids"] == [vocabulary.sep_id, *ids[1]]
    assert vocabulary.round_trips(lines[0], ids[1])
    again = load_vocabulary(tmp_path / "v", tmp_path / "w", causal=True)
    assert again.encode_batch(lines) == vocabulary.encode_batch(lines)


def test_bins_of_few_or_equal_values(tmp_path):
    vocabulary, report = train_vocabulary(["1 1 1 2 2 nan"], tmp_path / "v", kind="bins", size=60, unicode="none")
    assert vocabulary.bin_centres.tolist() == [1.0, 2.0] and report.size == 8
    assert vocabulary.encode_batch(["0 1 2 3"])[0] == [6, 6, 7, 7]
    for binning in ("quantile", "uniform"):
        constant, _ = train_vocabulary(["1 1"], tmp_path / "w", kind="bins", size=60, binning=binning, unicode="none")
        assert constant.bin_centres.tolist() == [1.0] and constant.encode_batch(["-5 5"])[0] == [6, 6]
    with pytest.raises(UserError, match="no value"):
        train_vocabulary(["nan nan"], tmp_path / "x", kind="bins", size=60, unicode="none")
    assert names_of([0.12341, 0.12342]) == ["0.12341", "0.12342"]


def test_all_windows_of_a_series_are_on_one_side(tmp_path):
    draw = np.random.default_rng(0)
    rows = [f"s{i},{t},{draw.normal():.3f}" for i in range(40) for t in range(30)]
    path = written(tmp_path, "id,t,x\n" + "\n".join(rows) + "\n")
    text = {"input": str(path), "format": "series", "held_out": 0.3, "workers": 1}
    text |= {"series": {"id": "id", "time": "t", "length": 10}, "vocabulary": {"size": 40}}
    params = validate_params(
        {
            "run": {"folder": tmp_path / "run"},
            "text": text,
            "model": {"preset": "gpt2-tiny"},
            "task": {"kind": "causal_lm"},
            "training": {"phases": [{"sequence_length": 11, "batch_size": 8, "steps": 1}], "learning_rate": 1e-3},
        }
    )
    assert params.text.language == "series" and params.text.vocabulary.kind == "bins"
    run = RunFolder(tmp_path / "run")
    run.create()
    _, tokens = prepare(params, run)
    report = tokens.report
    held_out = report["held_out"]["documents"]
    assert held_out % 3 == 0 and 0 < held_out < 120 and report["train"]["documents"] == 120 - held_out
    assert report["unknown_token_rate"] == 0 and report["round_trips_lossy"] == 0
