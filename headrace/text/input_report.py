"""What became of the input, in figures: the manifest that finishes a tokens folder, and its report in words."""

import json
from collections import Counter
from typing import Any

import numpy as np

from headrace.errors import UserError
from headrace.params import Params
from headrace.progress import say
from headrace.run_folder import RunFolder
from headrace.text.source import word_rule
from headrace.text.tokens import (
    SPLITS,
    TokenFolder,
    duplicate_documents,
    overlapping_documents,
    sha256_of,
    write_atomically,
)
from headrace.text.vocabulary import Vocabulary

ONE_SENTENCE_WARNING_SHARE = 0.9


def write_manifest(
    params: Params,
    run: RunFolder,
    vocabulary: Vocabulary,
    source: dict[str, Any],
    read: Counter[str],
    num_chunks: int,
    elapsed_s: float,
) -> None:
    counts: Counter[str] = Counter()
    lossy: list[str] = []
    shards: dict[str, list[dict[str, Any]]] = {split: [] for split in SPLITS}
    for number in range(num_chunks):
        record = json.loads((run.tokens / "chunks" / f"{number:05d}.json").read_text("utf-8"))
        counts.update(record["counts"])
        lossy += record["lossy"]
        for split, info in record["shards"].items():
            shards[split].append(info)
    manifest: dict[str, Any] = {
        "version": 1,
        "vocabulary_size": vocabulary.size,
        "vocabulary_sha256": sha256_of(run.tokenizer / "vocabulary.json"),
        "shards": shards,
        "report": {},
    }
    tokens = TokenFolder(run.tokens, manifest)
    if not shards["train"]:
        raise UserError(
            f"text.input = {params.text.input}: gives no training documents ({_sentence(read) or 'nothing was read'})"
        )
    if overlap := overlapping_documents(tokens):
        raise UserError(
            f"{run.tokens}: {overlap} held-out documents also are in training; delete the folder, run again"
        )
    frequency = np.zeros(vocabulary.size, np.int64)
    for shard in (shard for split in SPLITS for shard in tokens.shards(split)):
        frequency += np.bincount(shard.tokens, minlength=vocabulary.size)
        shard.close()
    totals = {
        split: {
            unit: sum(info[f"num_{unit}"] for info in shards[split]) for unit in ("documents", "sentences", "tokens")
        }
        for split in SPLITS
    }
    num_tokens = int(frequency.sum())
    special = {vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id}
    order = np.argsort(-frequency, kind="stable")
    manifest["report"] = {
        "files": [name for name, *_ in source["files"]],
        "input_bytes": sum(size for _, size, _ in source["files"]),
        "format": source["text"]["format"],
        "read": dict(read),
        "characters": counts["characters"],
        **totals,
        "dropped": {key: n for key, n in counts.items() if key.startswith("dropped") and n},
        "duplicate_documents": duplicate_documents(tokens),
        "unknown_token_rate": int(frequency[vocabulary.unk_id]) / num_tokens,
        "characters_per_token": counts["characters"] / num_tokens,
        "round_trips_tried": counts["round trips tried"],
        "round_trips_lossy": counts["round trips lossy"],
        "lossy_examples": lossy[:5],
        "word_rule": word_rule(params, vocabulary.kind),
        "vocabulary": {"kind": vocabulary.kind, "size": vocabulary.size},
        "commonest_token_ids": [int(i) for i in order[:10_000] if frequency[i] and int(i) not in special],
        "prepare_s": elapsed_s,
    }
    write_atomically(run.tokens / "manifest.json", json.dumps(manifest, ensure_ascii=False, indent=1).encode())
    for line in describe_input(manifest["report"]):
        say(line)
    warn(params, read)


def describe_input(report: dict[str, Any]) -> list[str]:
    """The input report in lines a person reads."""
    train, held_out = report["train"], report["held_out"]
    documents = train["documents"] + held_out["documents"]
    tokens = train["tokens"] + held_out["tokens"]
    tried = report["round_trips_tried"]
    lines = [
        f"Text: {documents:,} documents, {train['sentences'] + held_out['sentences']:,} sentences, "
        f"{report['characters']:,} characters, {tokens:,} tokens ({report['characters_per_token']:.2f} characters a token)",
        f"Split: {train['documents']:,} documents train, {held_out['documents']:,} held out, none in both; "
        f"{report['duplicate_documents']:,} duplicates",
        f"Unknown tokens: {report['unknown_token_rate']:.3%}; encode-decode round trip exact for "
        f"{1 - report['round_trips_lossy'] / max(tried, 1):.2%} of {tried:,} sentences tried",
    ]
    dropped = {**{k: n for k, n in report["read"].items() if k.startswith("dropped")}, **report["dropped"]}
    if dropped:
        lines.append("Dropped: " + _sentence(Counter(dropped)))
    return lines


def warn(params: Params, read: Counter[str]) -> None:
    share = read["documents of one sentence"] / max(read["documents"], 1)
    if share > ONE_SENTENCE_WARNING_SHARE and params.task.examples != "sentences":
        say(
            f"Warning: {share:.0%} of documents are a single sentence. If blank lines separate sentences, not documents, "
            f"set text.format = document_per_line or remove them; next-sentence pairs need longer documents"
        )


def _sentence(counts: Counter[str]) -> str:
    return ", ".join(f"{n:,} {key.removeprefix('dropped: ')}" for key, n in counts.items() if n)
