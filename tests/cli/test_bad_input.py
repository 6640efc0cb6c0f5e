"""Bad input of every kind: one line that names file and line or key, exit code 2, and nothing lost."""

import gzip
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jobs import Job, Outcome, bytes_under, made_text

from headrace.text.tokens import open_tokens

NewJob = Callable[..., Job]
TEXT = made_text(60)
SMALL_CHUNKS = {"headrace.text.prepare.CHUNK_CHARACTERS": 500}


def assert_refused(outcome: Outcome, *named: str) -> None:
    assert outcome.code == 2, outcome
    assert "Traceback" not in outcome.out + outcome.err
    assert outcome.err.startswith("headrace: ")
    assert outcome.err.count("\n") == 1, outcome.err
    for name in named:
        assert name in outcome.err


def assert_works(outcome: Outcome) -> str:
    assert outcome.code == 0, outcome
    assert outcome.err == ""
    return outcome.out


def tokens(job: Job) -> dict[str, bytes]:
    return bytes_under(job.run_folder / "tokens", "*.safetensors")


def input_report(job: Job) -> dict[str, Any]:
    return open_tokens(job.run_folder / "tokens").report


@pytest.fixture(scope="module")
def plain_tokens(new_job: NewJob) -> dict[str, bytes]:
    job = new_job(TEXT)
    assert_works(job("prepare"))
    return tokens(job)


# --- text that is read as it is meant


@pytest.mark.parametrize(
    "content",
    [
        TEXT.rstrip("\n").encode(),
        TEXT.replace("\n", "\r\n").encode(),
        b"\xef\xbb\xbf" + TEXT.encode(),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-16-be"),
        TEXT.replace("\n", "\r\n").encode("cp932"),
        TEXT.encode("euc_jp"),
        gzip.compress(TEXT.encode()),
    ],
    ids=["no final newline", "CRLF", "BOM", "UTF-16", "UTF-16-BE", "Shift-JIS", "EUC-JP", "gzip named .txt"],
)
def test_same_tokens(new_job: NewJob, plain_tokens: dict[str, bytes], content: bytes):
    job = new_job(content)
    assert_works(job("prepare"))
    assert tokens(job) == plain_tokens


def test_nul_is_removed_and_counted(new_job: NewJob, plain_tokens: dict[str, bytes]):
    job = new_job(TEXT.replace("水", "水\0", 7))
    assert_works(job("prepare"))
    assert input_report(job)["read"]["NUL characters removed"] == 7
    assert tokens(job)["train/00000.safetensors"] == plain_tokens["train/00000.safetensors"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x0b", "\x0c", "\x85", "\r"])
def test_only_newlines_end_lines(new_job: NewJob, separator: str):
    job = new_job("一つ目の文です。\n二つ目の" + separator + "文です。\n\n" + TEXT)
    assert_works(job("prepare"))
    report = input_report(job)
    num_sentences = 2 + sum(1 for line in TEXT.split("\n") if line)
    assert report["train"]["sentences"] + report["held_out"]["sentences"] == num_sentences


def test_long_line(new_job: NewJob):
    job = new_job(TEXT + "\n" + "長い行が続き、" * 500_000)
    assert_works(job("prepare"))
    report = input_report(job)
    assert report["read"]["long lines split"] == 1
    assert report["characters"] > 3_500_000


@pytest.mark.slow
@pytest.mark.parametrize("sentence", ["長い行が続き、", "とても長い文です。", "あ"])
def test_200_mb_line_in_bounded_memory(new_job: NewJob, sentence: str):
    first = new_job(TEXT, text__vocabulary={"kind": "unigram", "size": 60})
    assert_works(first("prepare"))
    job = new_job(TEXT + "\n", text__vocabulary={"load": str(first.run_folder / "tokenizer")})
    with (job.folder / "text.txt").open("a") as file:
        for _ in range(200):
            file.write(sentence * (1_000_000 // len(sentence.encode())))
    (job.folder / "params.yaml").write_text(yaml.safe_dump(job.tree))
    command = [sys.executable, "-m", "headrace", "prepare", "params.yaml"]
    with subprocess.Popen(
        command, cwd=job.folder, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert used.ru_maxrss < 1 << 20, f"{used.ru_maxrss / 1024:.0f} MiB"
    assert input_report(job)["characters"] > 60_000_000


# --- text that cannot be read


@pytest.mark.parametrize(
    "content", [b"", b"\n\n \n\r\n\t\n", b"\xef\xbb\xbf"], ids=["empty", "blank lines", "only a BOM"]
)
@pytest.mark.parametrize("kind", ["byte", "unigram"])
def test_no_text(new_job: NewJob, content: bytes, kind: str):
    job = new_job(content, text__vocabulary={"kind": kind, "size": 100})
    assert_refused(job("prepare"), "text.input", "text.txt")
    (job.folder / "text.txt").write_text(TEXT)
    assert_works(job("prepare"))


def test_invalid_bytes(new_job: NewJob):
    lines = TEXT.encode().split(b"\n")
    lines[4] = "水".encode() + b"\xff\xfe" + "は流れる。".encode()
    job = new_job(b"\n".join(lines))
    assert_refused(job("prepare"), "text.txt:5:", "text.invalid_bytes")
    for policy, counted in (("replace", "replaced"), ("skip", "skipped")):
        job.tree["run"]["folder"] = f"run-{policy}"
        assert_works(job("prepare", f"text.invalid_bytes={policy}"))
        report = open_tokens(job.folder / f"run-{policy}" / "tokens").report
        assert report["read"][f"lines with invalid bytes {counted}"] == 1
    (job.folder / "text.txt").write_text(TEXT)
    job.tree["run"]["folder"] = "run"
    assert_works(job("prepare"))


def test_truncated_gzip(new_job: NewJob, plain_tokens: dict[str, bytes]):
    whole = gzip.compress(TEXT.encode())
    job = new_job(whole[: len(whole) // 2])
    assert_refused(job("prepare"), "text.txt:", "truncated")
    (job.folder / "text.txt").write_bytes(whole)
    assert_works(job("prepare"))
    assert tokens(job) == plain_tokens


def test_bad_bytes_found_while_tokenizing(new_job: NewJob):
    """With a loaded vocabulary nothing has read the text before; the corrected text then goes the whole way."""
    first = new_job(TEXT)
    assert_works(first("prepare"))
    job = new_job(TEXT.encode() + b"\n\xff\xff\xff\n")
    job.tree["text"]["vocabulary"] = {"load": str(first.run_folder / "tokenizer")}
    job.tree["text"]["encoding"] = "utf-8"
    assert_refused(job("prepare"), f"text.txt:{TEXT.count(chr(10)) + 2}:")
    (job.folder / "text.txt").write_text(TEXT)
    assert_works(job("prepare"))
    assert tokens(job) == tokens(first)


def test_missing_input(new_job: NewJob):
    job = new_job(TEXT)
    assert_refused(job("prepare", "text.input=texts.txt"), "texts.txt", "text.txt")
    assert_refused(job("prepare", "text.input=[]"), "text.input")
    assert_works(job("prepare"))


@pytest.mark.parametrize(("kind", "size"), [("unigram", 50_000), ("bpe", 50_000), ("wordpiece", 50_000)])
def test_vocabulary_larger_than_the_text_supports(new_job: NewJob, kind: str, size: int):
    job = new_job(TEXT, text__vocabulary={"kind": kind, "size": size})
    assert_refused(job("prepare"), f"text.vocabulary.size = {size}", "at most")
    assert_works(job("prepare", "text.vocabulary.size=90"))


# --- text that does not suit the task


def test_one_document_with_next_sentences(new_job: NewJob):
    job = new_job("\n".join(line for line in TEXT.split("\n") if line) + "\n", text__held_out=0.0)
    job.tree["text"]["format"] = "sentence_per_line"
    assert_refused(job("run"), "sentence_pairs", "two documents")
    assert "Traceback" not in job("run").err
    out = assert_works(job("run", "task.examples=documents"))
    assert "Model" in out


def test_the_same_document_many_times(new_job: NewJob):
    job = new_job("川は流れる。\n村を通る。\n\n" * 30, text__held_out=0.0)
    assert_refused(job("run"), "sentence_pairs", "30 times")


def test_blank_lines_between_all_sentences_warn(new_job: NewJob):
    job = new_job("\n\n".join(line for line in TEXT.split("\n") if line) + "\n")
    job.tree["text"]["format"] = "sentence_per_line"
    assert "Warning: 100% of documents are a single sentence" in assert_works(job("prepare"))


# --- disks and folders


class SmallDisk:
    """A tmpfs of a given size."""

    def __init__(self, folder: Path, size_kib: int):
        self.folder = folder
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_kib}k", "tmpfs", folder], check=True)

    def remount(self, option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", self.folder], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], SmallDisk]]:
    probe = tmp_path / "probe"
    probe.mkdir()
    if os.getuid() or subprocess.run(["mount", "-t", "tmpfs", "tmpfs", probe], capture_output=True).returncode:
        pytest.skip("mounting a small disk needs root")
    subprocess.run(["umount", probe], check=True)
    made: list[SmallDisk] = []

    def make(size_kib: int) -> SmallDisk:
        made.append(SmallDisk(tmp_path / f"disk-{len(made)}", size_kib))
        return made[-1]

    yield make
    for disk in made:
        subprocess.run(["umount", disk.folder], check=True)


@pytest.fixture(scope="module")
def whole_result(new_job: NewJob) -> dict[str, Any]:
    job = new_job()
    assert_works(job("run"))
    return job.result()


def fill_and_free(new_job: NewJob, disk: SmallDisk, whole_result: dict[str, Any]) -> str:
    """Fill the disk, enlarge it, go on; the message of the refusal."""
    job = new_job(run__folder=str(disk.folder))
    outcome = job("run")
    assert_refused(outcome, str(disk.folder), "space")
    disk.remount("size=64m")
    assert_works(job("run"))
    job.tree["run"]["folder"] = "run"
    (job.folder / "run").symlink_to(disk.folder)
    result = job.result()
    assert result["tokens"] == whole_result["tokens"]
    assert result["metrics"] == whole_result["metrics"]
    assert result["evaluations"] == whole_result["evaluations"]
    assert result["checkpoint"] == whole_result["checkpoint"]
    return outcome.err


@pytest.mark.parametrize(("size_kib", "place"), [(16, "tokenizer"), (150, "/tokens/"), (1000, "checkpoint")])
def test_disk_full(
    new_job: NewJob, small_disk: Callable[[int], SmallDisk], whole_result: dict[str, Any], size_kib: int, place: str
):
    assert place in fill_and_free(new_job, small_disk(size_kib), whole_result)


@pytest.mark.slow
def test_disk_full_at_any_moment(new_job: NewJob, small_disk: Callable[[int], SmallDisk], whole_result: dict[str, Any]):
    for size_kib in range(8, 1300, 60):
        print(size_kib, fill_and_free(new_job, small_disk(size_kib), whole_result), end="")


@pytest.mark.parametrize(("limit_bytes", "place"), [(30_000, "tokens"), (30_000, "checkpoints")])
def test_files_may_not_grow(new_job: NewJob, limit_bytes: int, place: str):
    """A limit on the size of files, which needs no root."""
    job = new_job()
    if place == "checkpoints":
        assert_works(job("prepare"))
    assert_refused(job("run", largest_file_bytes=limit_bytes), place, "too large")
    assert_works(job("run"))


def test_unwritable_folder(new_job: NewJob, small_disk: Callable[[int], SmallDisk]):
    job = new_job(TEXT)
    assert_refused(job("prepare", "run.folder=text.txt/run"), "run.folder")
    assert_refused(job("prepare", "run.folder=/proc/run"), "run.folder", "/proc/run")
    assert (job.folder / "text.txt").read_text() == TEXT
    disk = small_disk(1024)
    disk.remount("ro")
    assert_refused(job("run", f"run.folder={disk.folder}"), "run.folder", "Read-only")
    disk.remount("rw")
    assert_works(job("prepare", f"run.folder={disk.folder}"))


# --- damage


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[len(data) // 2] ^= 0x10
    path.write_bytes(data if how == "flip" else data[:-7])


@pytest.mark.parametrize("how", ["flip", "cut"])
@pytest.mark.parametrize("verb", ["run", "train"])
def test_damaged_shard(new_job: NewJob, how: str, verb: str):
    job = new_job(TEXT)
    assert_works(job("prepare", constants=SMALL_CHUNKS))
    before = tokens(job)
    path = job.run_folder / "tokens" / "train" / "00003.safetensors"
    damage(path, how)
    outcome = job(verb, constants=SMALL_CHUNKS)
    assert_refused(outcome, str(path.relative_to(job.folder)), "headrace prepare")
    assert "Training" not in outcome.out
    path.unlink()
    others = {p: p.stat().st_mtime_ns for p in path.parent.glob("*.safetensors")}
    assert_works(job("prepare", constants=SMALL_CHUNKS))
    assert tokens(job) == before
    assert all(p.stat().st_mtime_ns == at for p, at in others.items())


def test_damaged_token_manifest(new_job: NewJob, plain_tokens: dict[str, bytes]):
    job = new_job(TEXT)
    assert_works(job("prepare"))
    damage(job.run_folder / "tokens" / "manifest.json", "cut")
    assert_refused(job("prepare"), "run/tokens/manifest.json")
    (job.run_folder / "tokens" / "manifest.json").unlink()
    assert_works(job("prepare"))
    assert tokens(job) == plain_tokens


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("optimizer/001-block-000.exp_avg.safetensors", "flip"),
        ("model-00001-of-00003.safetensors", "cut"),
        ("headrace.json", "cut"),
    ],
)
def test_damaged_checkpoint(new_job: NewJob, whole_result: dict[str, Any], name: str, how: str):
    job = new_job()
    assert_works(job("run"))
    newest = job.run_folder / "checkpoints" / job.checkpoints()[-1]
    damage(newest / name, how)
    assert_refused(job("run"), f"step-00000040/{name}", "delete")
    for path in sorted(newest.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    newest.rmdir()
    assert "step-00000035" in assert_works(job("run"))
    assert job.result() == whole_result


# --- params


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("training.phases.0.batch_sze=4", ["training.phases.0.batch_sze", "batch_size"]),
        ("modle.hidden_size=4", ["modle", "model"]),
        (
            "training.phases.1.sequence_length=128",
            ["training.phases.1.sequence_length = 128", "max_position_embeddings = 64"],
        ),
        ("training.phases.0.batch_size=0", ["training.phases.0.batch_size = 0", "than 0"]),
        ("model.num_attention_heads=5", ["model.hidden_size = 32", "num_attention_heads = 5"]),
        ("text.encoding=utf-9", ["text.encoding = utf-9"]),
        ("text.language=fr", ["text.language = 'fr'", "'ja'", "'en'"]),
        ("training.learning_rate.steps=3", ["training.learning_rate"]),
        ("training.phases.7.steps=3", ["training.phases", "7"]),
        ("training.learning_rate", ["section.key=value"]),
        ("text.vocabulary.load=nowhere", ["text.vocabulary.load = nowhere"]),
    ],
)
def test_params(new_job: NewJob, override: str, named: list[str]):
    job = new_job(TEXT)
    verb = "run" if "heads" in override else "prepare"
    assert_refused(job(verb, override), *named)
    assert_works(job("prepare"))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, ["params.yaml", "No such file"]),
        (b"", ["params.yaml", "sections"]),
        (b"- a\n- b\n", ["params.yaml", "sections"]),
        (b"run:\n  folder: [x\n", ["params.yaml:3"]),
        (b"run: {folder: a}\nrun: {folder: b}\n", ["params.yaml:2", "twice"]),
        (b"run: {folder: \x83\x65}\n", ["params.yaml", "UTF-8"]),
        (b"run: {folder: a}\ntext: {input: text.txt}\n", ["training", "required"]),
    ],
)
def test_params_file(new_job: NewJob, content: bytes | None, named: list[str]):
    job = new_job(TEXT)
    if content is not None:
        (job.folder / "params.yaml").write_bytes(content)
    assert_refused(job("prepare", write_params=False), *named)
    assert not job.run_folder.exists()


def test_changed_settings_on_a_run_folder(new_job: NewJob, whole_result: dict[str, Any]):
    job = new_job()
    assert_works(job("run"))
    for override in ("text.lowercase=true", "text.held_out=0.2", "text.vocabulary.kind=character"):
        assert_refused(job("run", override), override.split("=")[0].rpartition(".")[2], "run.folder")
    text = (job.folder / "text.txt").read_text()
    (job.folder / "text.txt").write_text(text + "\n新しい文。\n")
    assert_refused(job("run"), "files", "run.folder")
    (job.folder / "text.txt").write_text(text)
    job.tree["training"]["phases"][1]["steps"] = 22  # so that there is something left to do
    for override in ("model.hidden_size=64", "training.phases.0.batch_size=4", "run.seed=9", "task.mask_rate=0.2"):
        assert_refused(job("train", override), override.split("=")[0], "run.folder")
    assert_works(job("run"))
    assert job.records("metrics")[: len(whole_result["metrics"])] == whole_result["metrics"]
    assert job.checkpoints()[-1] == "step-00000042"


# --- training that fails


def test_loss_not_finite(new_job: NewJob, whole_result: dict[str, Any]):
    job = new_job()
    job.tree["training"]["learning_rate"] = {"kind": "piecewise", "boundaries": [9], "values": [1e-3, 1e30]}
    outcome = job("run")
    assert_refused(outcome, "step 11:", "before the update")
    *good, bad = job.records("metrics")
    assert [record["step"] for record in good] == list(range(1, 11))
    assert bad["step"] == 11
    assert f"batch {bad['batch']}" in outcome.err
    assert job.checkpoints() == ["step-00000007"]
    assert bad["batch"] == whole_result["metrics"][10]["batch"]
    # What the message advises: a lower rate, and on from the last checkpoint. The steps before it had this very rate.
    job.tree["training"]["learning_rate"] = 1e-3
    assert "From step 7 on: training.learning_rate" in assert_works(job("run"))
    assert job.records("metrics") == whole_result["metrics"]
