"""What `headrace inspect` says of whole, damaged and half-written folders."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from headrace.errors import UserError
from headrace.params import dump_params, validate_params
from headrace.report.inspect import count_parameters, inspect_folder
from headrace.run_folder import RunFolder
from headrace.text.tokens import SPLITS, ShardBuilder


def text_of(folder: Path) -> str:
    return "\n".join(inspect_folder(folder))


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), "utf-8")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_tokens(folder: Path) -> None:
    """Two chunks of three training documents and one held-out each."""
    shards: dict[str, list] = {split: [] for split in SPLITS}
    for number in range(2):
        record: dict = {"counts": {}, "lossy": [], "shards": {}}
        for split, num_documents in (("train", 3), ("held_out", 1)):
            (folder / split).mkdir(parents=True, exist_ok=True)
            builder = ShardBuilder(1000)
            for d in range(num_documents):
                builder.add_document([np.arange(5), np.arange(4)], [np.ones(5, bool), np.ones(4, bool)], d)
            info = builder.write(folder / split / f"{number:05d}.safetensors", folder)
            assert info is not None
            record["shards"][split] = {name: getattr(info, name) for name in info.__slots__}
            shards[split].append(record["shards"][split])
        write_json(folder / "chunks" / f"{number:05d}.json", record)
    write_json(folder / "source.json", {"files": []})
    vocabulary = folder.parent / "tokenizer" / "vocabulary.json"
    write_json(vocabulary, {"kind": "unigram", "ids": {}})
    write_json(
        folder / "manifest.json",
        {
            "version": 1,
            "vocabulary_size": 1000,
            "vocabulary_sha256": sha256(vocabulary),
            "shards": shards,
            "report": {"files": ["a.txt"]},
        },
    )


def make_checkpoint(folder: Path, step: int) -> None:
    folder.mkdir(parents=True)
    write_json(
        folder / "config.json", {"model_type": "bert", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 1000}
    )
    save_file({"a.weight": np.zeros((3, 4), np.float32)}, folder / "model-00001-of-00002.safetensors")
    save_file({"b.weight": np.zeros(5, np.float32)}, folder / "model-00002-of-00002.safetensors")
    weight_map = {"a.weight": "model-00001-of-00002.safetensors", "b.weight": "model-00002-of-00002.safetensors"}
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})
    (folder / "optimizer").mkdir()
    save_file({"a.weight.exp_avg": np.zeros((3, 4), np.float32)}, folder / "optimizer" / "000-a.safetensors")
    files = {
        path.relative_to(folder).as_posix(): [path.stat().st_size, sha256(path)]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    state = {"step": step, "phase": 0, "phase_step": step}
    write_json(folder / "headrace.json", {"version": 1, "state": state, "params": {}, "files": files})


@pytest.fixture
def run(tmp_path) -> RunFolder:
    """A finished run of 20 steps with two checkpoints."""
    run = RunFolder(tmp_path / "run")
    phase = {"sequence_length": 32, "batch_size": 4, "steps": 20, "learning_rate": {"kind": "constant", "value": 1e-3}}
    params = validate_params(
        {"run": {"folder": str(run.root)}, "text": {"input": "a.txt"}, "training": {"phases": [phase]}}
    )
    run.create()
    run.params.write_text(dump_params(params), "utf-8")
    make_tokens(run.tokens)
    for step in (10, 20):
        make_checkpoint(run.checkpoints / f"step-{step:08d}", step)
    run.model.symlink_to("checkpoints/step-00000020")
    run.metrics.write_text('{"step": 20, "phase": 0, "loss": 3.5}\n{"step": 21, "pha', "utf-8")
    run.evaluations.write_text(
        '{"step": 20, "eval/accuracy_masked_lm": 0.25, "eval/mlm_perplexity": 80.5, "eval/accuracy_cls": null, '
        '"n_predicted_tokens": 321}\n',
        "utf-8",
    )
    return run


def test_a_whole_run(run):
    text = text_of(run.root)
    assert "DAMAGED" not in text and text.count("whole: ") == 3
    assert "train: 6 documents, 12 sentences, 54 tokens in 2 shards" in text
    assert "held_out: 2 documents, 4 sentences, 18 tokens in 2 shards" in text
    assert "training: finished, step 20 of 20" in text
    assert "masked-LM accuracy 0.2500, perplexity 80.50, n = 321 tokens" in text
    assert "17 parameters" in text and "unigram, 1,000 entries" in text
    assert count_parameters(run.model) == 17


def test_a_tokens_folder_and_a_checkpoint_on_their_own(run):
    assert "train/00001.safetensors: 3 documents, 6 sentences, 27 tokens" in text_of(run.tokens)
    text = text_of(run.model)
    assert "step 20, step 20 of phase 1" in text and "optimizer/000-a.safetensors: " in text and "whole: " in text


def _truncate(path: Path) -> str:
    path.write_bytes(path.read_bytes()[:-7])
    return f"{path} has {path.stat().st_size:,} bytes, {path.stat().st_size + 7:,} expected"


def _flip(path: Path) -> str:
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    return f"{path}: its checksum is not the one written down"


def _delete(path: Path) -> str:
    path.unlink()
    return f"{path} is missing"


@pytest.mark.parametrize("damage", [_truncate, _flip, _delete])
@pytest.mark.parametrize(
    "name", ["tokens/train/00001.safetensors", "checkpoints/step-00000020/model-00002-of-00002.safetensors"]
)
def test_names_the_damaged_file_and_what_to_do(run, damage, name):
    path = run.root / name
    said = damage(path)
    folder = run.tokens if name.startswith("tokens") else path.parent
    for text in (text_of(run.root), text_of(folder)):
        assert f"DAMAGED: {said}" in text
        assert text.count("DAMAGED") == 1 and "remedy: delete" in text
    assert "whole: " not in text_of(folder)


def test_another_vocabulary_than_the_tokens(run):
    write_json(run.tokenizer / "vocabulary.json", {"kind": "bpe"})
    assert "is not the vocabulary these tokens were made with" in text_of(run.root)


def test_prepare_that_was_killed(run):
    (run.tokens / "manifest.json").unlink()
    (run.tokens / "chunks" / "00001.json").unlink()
    (run.tokens / "train" / "00001.safetensors.tmp").write_bytes(b"half")
    text = text_of(run.tokens)
    assert "unfinished: 1 chunk of text done (4 documents, 8 sentences, 36 tokens); `headrace prepare` goes on" in text
    assert "DAMAGED" not in text
    _truncate(run.tokens / "train" / "00000.safetensors")
    assert "DAMAGED" in text_of(run.root)


def test_training_that_was_killed(run):
    newest = run.checkpoints / "step-00000020"
    newest.rename(run.checkpoints / ".step-00000020.tmp")
    text = text_of(run.root)
    assert "training: unfinished, at step 10 of 20; the same `headrace run` goes on" in text
    assert "unfinished checkpoint .step-00000020.tmp" in text
    assert f"DAMAGED: {run.model} points to checkpoints/step-00000020, which is not there" in text


def test_a_checkpoint_without_its_manifest(run):
    (run.checkpoints / "step-00000020" / "headrace.json").unlink()
    assert "unfinished: headrace.json, which is written last, is missing" in text_of(run.model)


def test_never_a_traceback_whatever_is_cut_or_missing(run):
    """Every file of a run in turn: gone, empty, cut in half, or JSON of another shape."""
    files = sorted(path for path in run.root.rglob("*") if path.is_file() and not path.is_symlink())
    for path in files:
        data = path.read_bytes()
        for spoilt in (
            None,
            b"",
            data[: len(data) // 2],
            b"[1, 2]",
            b'{"shards": 3, "files": 4, "state": 5}',
            b"\xff\xfe",
        ):
            path.unlink(missing_ok=True)
            if spoilt is not None:
                path.write_bytes(spoilt)
            for folder in (run.root, run.tokens, run.model):
                assert inspect_folder(folder)
        path.write_bytes(data)
    assert "DAMAGED" not in text_of(run.root)


def test_refuses_what_is_no_folder_of_ours(tmp_path):
    (tmp_path / "note.txt").write_text("x")
    with pytest.raises(UserError, match=r"is no run folder .* it holds note\.txt"):
        inspect_folder(tmp_path)
    with pytest.raises(UserError, match="no such folder"):
        inspect_folder(tmp_path / "absent")
    with pytest.raises(UserError, match="is a file"):
        inspect_folder(tmp_path / "note.txt")
