"""What a folder of ours holds and whether it is whole: a run, its tokens, or a checkpoint.

Every file that a manifest names is compared with its size and checksum there. Half-written folders are described, never
refused: what is done, what is missing, and which command goes on.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.params import Params, load_params
from headrace.progress import progress
from headrace.run_folder import RunFolder
from headrace.text.tokens import SPLITS, sha256_of
from headrace.training.checkpoint import MANIFEST, is_intact
from headrace.training.records import read_records

DAMAGED = "DAMAGED: "  # starts every line that names a fault


def inspect_folder(folder: Path) -> list[str]:
    """Lines a person reads, for a run, tokens or checkpoint folder; raises UserError when it is none of these."""
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    if not folder.is_dir():
        raise UserError(f"{folder}: is a file; give a run folder, its tokens folder or a checkpoint")
    if _is_checkpoint(folder):
        return [f"Checkpoint {folder}", *_indented(_checkpoint(folder))]
    if _is_tokens(folder):
        return [f"Tokens {folder}", *_indented(_tokens(folder))]
    if _is_run(folder):
        return [f"Run {folder}", *_indented(_run(RunFolder(folder)))]
    held = ", ".join(sorted(path.name for path in folder.iterdir())[:5]) or "nothing"
    raise UserError(
        f"{folder}: is no run folder (params.yaml), tokens folder (source.json) or checkpoint ({MANIFEST}); "
        f"it holds {held}"
    )


def count_parameters(checkpoint: Path) -> int | None:
    """Weights of a checkpoint, from the headers of its safetensors files; None when one cannot be read."""
    try:
        index = json.loads((checkpoint / "model.safetensors.index.json").read_text("utf-8"))
        headers = [_header(checkpoint / name) for name in sorted(set(index["weight_map"].values()))]
        return sum(math.prod(entry["shape"]) for header in headers for entry in header.values() if "shape" in entry)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_checkpoint(folder: Path) -> bool:
    return (folder / MANIFEST).is_file() or (folder / "config.json").is_file() or folder.name.startswith(".step-")


def _is_tokens(folder: Path) -> bool:
    return (folder / "source.json").is_file() or (folder / "chunks").is_dir()


def _is_run(folder: Path) -> bool:
    run = RunFolder(folder)
    return any(path.exists() for path in (run.params, run.metrics, run.tokens, run.tokenizer, run.checkpoints))


# --- run


def _run(run: RunFolder) -> list[str]:
    params = _params(run)
    lines = [f"params: {params}" if isinstance(params, str) else _describe_params(params)]
    kind = _json(run.tokenizer / "vocabulary.json")
    records = _json(run.records)
    if kind is None and records is not None:
        lines.append("vocabulary: that of the records, which is not in the run folder")
    elif kind is None:
        finished = run.tokenizer.is_dir()
        lines.append(
            f"{DAMAGED}{run.tokenizer / 'vocabulary.json'} is missing or not JSON"
            if finished
            else "vocabulary: not made yet; `headrace prepare` makes it"
        )
    else:
        lines.append(
            f"vocabulary: {kind.get('kind', 'of unknown kind')}{_vocabulary_size(run.tokens)}, in {run.tokenizer.name}/"
        )
    if records is not None:
        lines += [
            f"{name}: {each.get('num_records', 0):,} records in {len(each.get('files', [])):,} files: {each.get('layout')}"
            for name, each in records.items()
        ]
    elif _is_tokens(run.tokens):
        lines += ["tokens", *_indented(_tokens(run.tokens))]
    else:
        lines.append("tokens: none yet; `headrace prepare` makes them")
    return lines + _training(run, None if isinstance(params, str) else params.total_steps)


def _params(run: RunFolder) -> Params | str:
    if not run.params.is_file():
        return "params.yaml is missing"
    try:
        return load_params(run.params)
    except UserError as error:
        return f"cannot be read: {error}"


def _describe_params(params: Params) -> str:
    phases = ", then ".join(
        f"{phase.steps:,} steps at length {phase.sequence_length}" for phase in params.training.phases
    )
    task = f"{params.task.kind} over {params.task.examples}"
    return f"params: {params.model.name}, {task}: {phases}; seed {params.run.seed}"


def _vocabulary_size(tokens: Path) -> str:
    manifest = _json(tokens / "manifest.json")
    size = manifest.get("vocabulary_size") if manifest else None
    return f", {size:,} entries" if isinstance(size, int) else ""


def _training(run: RunFolder, total_steps: int | None) -> list[str]:
    checkpoints = sorted(path for path in run.checkpoints.glob("step-*") if path.is_dir())
    metrics, evaluations = _records(run.metrics), _records(run.evaluations)
    step = _last_step(checkpoints)
    if not checkpoints:
        reached = f"unfinished: reached step {metrics[-1].get('step')}, but " if metrics else ""
        lines = [f"training: {reached}no checkpoint yet; `headrace run` starts it{' anew' if metrics else ''}"]
    elif step is None:
        lines = [f"training: the newest checkpoint has no readable {MANIFEST}"]
    elif total_steps is None or step >= total_steps:
        lines = [f"training: finished, step {step:,}" + (f" of {total_steps:,}" if total_steps else "")]
    else:
        lines = [
            f"training: unfinished, at step {step:,} of {total_steps:,}; the same `headrace run` goes on from there"
        ]
    if metrics:
        last = metrics[-1]
        loss = last.get("loss")
        lines.append(
            f"records: {len(metrics):,} to step {last.get('step')}, "
            + (f"last loss {loss:.4f}" if isinstance(loss, float) else "stopped there: the loss was not finite")
        )
    if evaluations:
        lines.append("last evaluation: " + _describe_evaluation(evaluations[-1]))
    elif checkpoints:
        lines.append("last evaluation: none")
    for checkpoint in checkpoints:
        lines += [f"checkpoint {checkpoint.name}", *_indented(_checkpoint(checkpoint, list_files=False))]
    for aside in sorted(run.checkpoints.glob(".step-*.tmp")):
        lines.append(f"unfinished checkpoint {aside.name}: left by a killed run; the next training removes it")
    if run.model.is_symlink() and not run.model.exists():
        lines.append(f"{DAMAGED}{run.model} points to {run.model.readlink()}, which is not there")
    elif run.model.exists():
        lines.append(f"model: {run.model.resolve().name}, a Hugging Face folder")
    if run.report.is_file() and run.report.stat().st_size:
        lines.append(f"report: {run.report}")
    return lines


def _last_step(checkpoints: list[Path]) -> int | None:
    for path in reversed(checkpoints):
        manifest = _json(path / MANIFEST)
        step = _get(manifest, "state", "step")
        if isinstance(step, int):
            return step
    return None


def _describe_evaluation(record: dict[str, Any]) -> str:
    names = {
        "eval/accuracy_masked_lm": "masked-LM accuracy {:.4f}",
        "eval/mlm_perplexity": "perplexity {:.2f}",
        "eval/accuracy": "next-token accuracy {:.4f}",
        "eval/perplexity": "perplexity {:.2f}",
        "eval/accuracy_cls": "next-sentence accuracy {:.4f}",
        "n_predicted_tokens": "n = {:,} tokens",
    }
    figures = [text.format(record[name]) for name, text in names.items() if isinstance(record.get(name), int | float)]
    return f"step {record.get('step')}: " + ", ".join(figures)


# --- tokens


def _tokens(folder: Path) -> list[str]:
    path = folder / "manifest.json"
    manifest = _json(path)
    if manifest is None:
        lines = [f"{DAMAGED}{path} is not JSON"] if path.is_file() else []
        return lines + _unfinished_tokens(folder)
    shards = {split: _get(manifest, "shards", split) for split in SPLITS}
    if not all(isinstance(each, list) and all(_is_shard(info) for info in each) for each in shards.values()):
        return [f"{DAMAGED}{path} does not list shards as headrace writes them"]
    lines = []
    for split in SPLITS:
        infos = shards[split]
        lines.append(
            f"{split}: {_total(infos, 'documents')} documents, {_total(infos, 'sentences')} sentences, "
            f"{_total(infos, 'tokens')} tokens in {len(infos):,} {'shard' if len(infos) == 1 else 'shards'}"
        )
        lines += [_describe_shard(info) for info in infos]
    files = _get(manifest, "report", "files")
    if isinstance(files, list):
        lines.append(
            f"from: {', '.join(map(str, files[:3]))}{f' and {len(files) - 3:,} more' if len(files) > 3 else ''}"
        )
    expected = {info["path"]: (info["size_bytes"], info["sha256"]) for split in SPLITS for info in shards[split]}
    remedy = "delete manifest.json and the shard's record in chunks/, then run `headrace prepare`: only it is made anew"
    faults = _compare(folder, expected, remedy)
    vocabulary = folder.parent / "tokenizer" / "vocabulary.json"
    if vocabulary.is_file() and sha256_of(vocabulary) != manifest.get("vocabulary_sha256"):
        faults.append(f"{DAMAGED}{vocabulary} is not the vocabulary these tokens were made with")
    named = {folder / name for name in expected}
    strangers = [path for split in SPLITS for path in sorted((folder / split).glob("*")) if path not in named]
    lines += [f"not in the manifest, unused: {path}" for path in strangers]
    return lines + (faults or ["whole: every shard has the size and checksum written in manifest.json"])


def _unfinished_tokens(folder: Path) -> list[str]:
    """What a killed prepare has done: each finished chunk of text left a record with its shards."""
    infos: dict[str, Any] = {}
    num_chunks, faults = 0, []
    for path in sorted((folder / "chunks").glob("*.json")):
        found = list((_get(_json(path), "shards") or {}).values())
        if not all(_is_shard(info) for info in found):
            faults.append(f"{DAMAGED}{path} is not as headrace writes it; delete it and run `headrace prepare` again")
            continue
        num_chunks += 1
        infos |= {info["path"]: info for info in found}
    done = list(infos.values())
    lines = [
        f"unfinished: {num_chunks:,} {'chunk' if num_chunks == 1 else 'chunks'} of text done "
        f"({_total(done, 'documents')} documents, {_total(done, 'sentences')} sentences, {_total(done, 'tokens')} "
        f"tokens); `headrace prepare` goes on from there"
    ]
    expected = {info["path"]: (info["size_bytes"], info["sha256"]) for info in done}
    return (
        lines
        + faults
        + _compare(folder, expected, "delete the shard's record in chunks/ and run `headrace prepare` again")
    )


def _is_shard(info: Any) -> bool:
    numbers = ("size_bytes", "num_documents", "num_sentences", "num_tokens")
    return (
        isinstance(info, dict)
        and all(isinstance(info.get(key), int) for key in numbers)
        and all(isinstance(info.get(key), str) for key in ("path", "sha256"))
    )


def _describe_shard(info: dict[str, Any]) -> str:
    return (
        f"  {info['path']}: {info['num_documents']:,} documents, {info['num_sentences']:,} sentences, "
        f"{info['num_tokens']:,} tokens, {size_text(info['size_bytes'])}"
    )


def _total(infos: list[dict[str, Any]], unit: str) -> str:
    return f"{sum(info[f'num_{unit}'] for info in infos):,}"


# --- checkpoint


def _checkpoint(folder: Path, list_files: bool = True) -> list[str]:
    manifest = _json(folder / MANIFEST)
    config = _json(folder / "config.json") or {}
    lines = []
    step = _get(manifest, "state", "step")
    if isinstance(step, int):
        phase, phase_step = _get(manifest, "state", "phase"), _get(manifest, "state", "phase_step")
        at = (
            f", step {phase_step:,} of phase {phase + 1}"
            if isinstance(phase, int) and isinstance(phase_step, int)
            else ""
        )
        lines.append(f"step {step:,}{at}")
    parameters = count_parameters(folder)
    size = ", ".join(
        f"{name} {config[key]:,}"
        for key, name in (
            ("num_hidden_layers", "layers"),
            ("hidden_size", "hidden size"),
            ("num_attention_heads", "heads"),
            ("vocab_size", "vocabulary"),
        )
        if isinstance(config.get(key), int)
    )
    if size:
        lines.append(
            f"{config.get('model_type', 'model')}: {size}" + (f", {parameters:,} parameters" if parameters else "")
        )
    on_disk = sorted(path for path in folder.rglob("*") if path.is_file())
    lines.append(f"{len(on_disk):,} files, {size_text(sum(path.stat().st_size for path in on_disk))}")
    if list_files:
        lines += [f"  {path.relative_to(folder).as_posix()}: {size_text(path.stat().st_size)}" for path in on_disk]
    files = _get(manifest, "files")
    if manifest is None and (folder / MANIFEST).is_file():
        return [
            *lines,
            f"{DAMAGED}{folder / MANIFEST} is not JSON; delete {folder} to go on from the checkpoint before it",
        ]
    if manifest is None:
        return [
            *lines,
            f"unfinished: {MANIFEST}, which is written last, is missing; training does not go on from here, and "
            f"there is nothing to check the files against",
        ]
    if not isinstance(files, dict) or not all(_is_stamp(stamp) for stamp in files.values()):
        return [*lines, f"{DAMAGED}{folder / MANIFEST} does not list files as headrace writes them"]
    faults = _compare(
        folder,
        {name: (size, digest) for name, (size, digest) in files.items()},
        f"delete {folder} to go on from the checkpoint before it",
    )
    return lines + (faults or [f"whole: every file has the size and checksum written in {MANIFEST}"])


def _is_stamp(stamp: Any) -> bool:
    return isinstance(stamp, list) and [type(part) for part in stamp] == [int, str]


# --- shared


def _compare(folder: Path, expected: dict[str, tuple[int, str]], remedy: str) -> list[str]:
    """A line for each file that is missing, of another size or of another checksum; the remedy after them."""
    faults = []
    with progress("Checking", sum(size for size, _ in expected.values()), "bytes") as meter:
        for name, (size_bytes, digest) in expected.items():
            path = folder / name
            if not path.is_file():
                faults.append(f"{DAMAGED}{path} is missing")
            elif (found := path.stat().st_size) != size_bytes:
                faults.append(f"{DAMAGED}{path} has {found:,} bytes, {size_bytes:,} expected")
            elif not _intact(path, digest):
                faults.append(f"{DAMAGED}{path}: its checksum is not the one written down")
            meter.advance(size_bytes)
    return [*faults, f"  remedy: {remedy}"] if faults else []


def _intact(path: Path, stamp: str) -> bool:
    try:
        return is_intact(path, stamp)
    except OSError:
        return False


def _json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None when the file is missing, cut short or something else."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _records(path: Path) -> list[dict[str, Any]]:
    try:
        return [record for record in read_records(path) if isinstance(record, dict)]
    except (OSError, UnicodeDecodeError):
        return []


def _get(tree: Any, *keys: str) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file: name -> dtype, shape, place."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > path.stat().st_size:
            raise ValueError(f"{path}: cut short")
        return json.loads(file.read(size))


def _indented(lines: list[str]) -> Iterator[str]:
    return (f"  {line}" for line in lines)


def size_text(size_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} {unit}" if unit == "bytes" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.2f} GB"
