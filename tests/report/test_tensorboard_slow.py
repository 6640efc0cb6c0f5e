"""TensorBoard itself, started on what a run writes: its API reads every scalar and vector, and a browser shows them."""

import json
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import numpy as np
import pytest

from headrace.run_folder import RunFolder
from headrace.training.records import SCALARS, Records, write_projector

pytestmark = pytest.mark.slow

LABELS = [f"語{i}" for i in range(196)] + ["a\tb", "\n", " ", "back\\slash"]
VECTORS = np.random.default_rng(0).normal(size=(len(LABELS), 16)).astype(np.float32)
STEPS = range(10, 210, 10)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs a Chromium to look at the page: apt install chromium"
)


@pytest.fixture(scope="module")
def tensorboard(tmp_path_factory):
    """The address of a TensorBoard of a made run."""
    run = RunFolder(tmp_path_factory.mktemp("run"))
    records = Records(run, step=0)
    for step in STEPS:
        records.train({"step": step, **dict.fromkeys(SCALARS, 1.0 / step)})
        records.evaluation(
            {"step": step, "eval/accuracy_masked_lm": step / 1000, "eval/accuracy_cls": None, "n_pairs": 0}
        )
    records.close()
    write_projector(run, VECTORS, LABELS)
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run.tensorboard), "--port", "0"]
    log = run.root / "tensorboard.log"
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            yield (
                _wait(lambda: re.search(r"http://\S+/", log.read_text()), "address in " + log.read_text())
                .group()
                .rstrip("/")
            )
        finally:
            process.terminate()


def _wait(found, what: str, limit_s: float = 60):
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if value := found():
            return value
        time.sleep(0.3)
    raise AssertionError(f"no {what} within {limit_s} s")


def fetch(address: str, route: str, **query: str) -> bytes:
    with urllib.request.urlopen(f"{address}/data/plugin/{route}?{urllib.parse.urlencode(query)}", timeout=30) as answer:
        return answer.read()


def tags_of(address: str) -> dict:
    return json.loads(fetch(address, "scalars/tags"))


def test_reads_every_scalar(tensorboard):
    tags = _wait(lambda: tags_of(tensorboard), "scalars")
    assert set(tags["."]) == {*SCALARS.values(), "eval/accuracy_masked_lm"}
    rows = json.loads(fetch(tensorboard, "scalars/scalars", run=".", tag="train/loss"))
    assert [(step, value) for _, step, value in rows] == [(step, pytest.approx(1 / step)) for step in STEPS]


def test_reads_every_vector_with_its_label(tensorboard):
    _wait(lambda: tags_of(tensorboard), "scalars")
    (info,) = json.loads(fetch(tensorboard, "projector/info", run="."))["embeddings"]
    assert info["tensorShape"] == list(VECTORS.shape)
    named = {"run": ".", "name": info["tensorName"]}
    vectors = np.frombuffer(fetch(tensorboard, "projector/tensor", **named), np.float32).reshape(VECTORS.shape)
    assert np.allclose(vectors, VECTORS, rtol=1e-4)
    labels = fetch(tensorboard, "projector/metadata", **named, num_rows="1000").decode().removesuffix("\n").split("\n")
    assert len(labels) == len(LABELS) and labels[:196] == LABELS[:196]


@needs_chromium
def test_a_browser_shows_the_loss_graph_and_the_projector(tensorboard, tmp_path):
    _wait(lambda: tags_of(tensorboard), "scalars")
    address = f"{tensorboard}/?tagFilter=train%2Floss#timeseries"

    def chart_is_drawn() -> bool:  # a browser started beside other work may be looked at too early
        page = look(tmp_path, "--virtual-time-budget=20000", "--dump-dom", address)
        return "train/loss" in page and "<line-chart" in page and 'class="ticks"' in page

    _wait(chart_is_drawn, "loss graph in the browser")
    from PIL import Image

    picture = tmp_path / "projector.png"
    gl = ("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader")

    def points_are_drawn() -> bool:
        look(tmp_path, *gl, "--virtual-time-budget=30000", f"--screenshot={picture}", f"{tensorboard}/#projector")
        colors = {color: n for n, color in Image.open(picture).convert("RGB").getcolors(1 << 24)}
        return colors.get((117, 117, 217), 0) > 1000  # the colour of the PCA's points

    _wait(points_are_drawn, "points of the projector in the browser")


def look(folder, *arguments: str) -> str:
    assert CHROMIUM is not None
    quiet = ("--headless", "--no-sandbox", "--no-first-run", "--disable-background-networking", "--disable-sync")
    command = [CHROMIUM, *quiet, f"--user-data-dir={folder / 'profile'}", "--window-size=1200,800", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
