"""The domain cases beside simple baselines, on the same held-out data and in the same unit.

    python benchmarks/domains.py dna|protein|timeseries|biomedical [--run FOLDER] [section.key=value ...]

Fetches the data and trains by configs/NAME.yaml where that is not done yet; the last line is JSON. docs/domains.md has the figures.

    dna, protein   bits a letter, next letter after those before it; baseline: counts of the last n letters that back off
                   (benchmarks/letter_model.py), n and its strength chosen on the held-out letters, in the baseline's favour
    timeseries     MASE and sMAPE of the next 24 hours, each day of the last 30; baseline: the day or the week before
    biomedical     masked-LM loss in bits a hidden token; baseline: the same run begun from random weights
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
warnings.filterwarnings("ignore")

import numpy as np
import torch
from letter_model import LetterModel
from transformers import AutoModelForCausalLM

from headrace.evaluation.forecast import mase, open_forecaster, seasonal_naive, smape
from headrace.params import Params, load_params
from headrace.run_folder import RunFolder
from headrace.text.documents import read_documents
from headrace.text.files import expand_paths
from headrace.text.series import iter_series
from headrace.text.source import series_options
from headrace.text.tokens import document_hash, is_held_out, open_tokens
from headrace.text.vocabulary import Vocabulary, open_vocabulary
from headrace.training.records import read_records

ROOT = Path(__file__).resolve().parents[1]
BATCH = 32
SEASON = HORIZON = 24
MINILM_ANEW = [
    "model.init_from=null",
    "model.preset=bert-mini",
    "model.hidden_size=384",
    "model.num_hidden_layers=6",
    "model.num_attention_heads=12",
]
LETTERS = {"dna": "ACGT", "protein": "ABCDEFGHIJKLMNOPQRSTUVWXYZ*"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("domain", choices=["dna", "protein", "timeseries", "biomedical"])
    parser.add_argument("--run", type=Path, default=None, help="run folder (default runs/DOMAIN)")
    parser.add_argument("overrides", nargs="*", help="params to change, e.g. training.phases.0.steps=100")
    args = parser.parse_intermixed_args()
    folder = args.run or ROOT / "runs" / args.domain
    started_s = time.perf_counter()
    params = trained(args.domain, folder, args.overrides)
    measure = {"timeseries": forecasts, "biomedical": lambda p: adaptation(p, args.overrides)}.get(args.domain, letters)
    found = measure(params)
    speeds = sorted(record["tokens_per_s"] for record in read_records(RunFolder(folder).metrics))
    print(
        json.dumps(
            {
                "benchmark": "domains",
                "domain": args.domain,
                **found,
                "training_tokens_per_s": round(speeds[len(speeds) // 2]),
                "threads": torch.get_num_threads(),
                "elapsed_s": round(time.perf_counter() - started_s),
            }
        )
    )


def trained(domain: str, folder: Path, overrides: list[str]) -> Params:
    """The params of a finished run of configs/DOMAIN.yaml, relative paths taken from the repository."""
    os.chdir(ROOT)
    if not (ROOT / ".cache/domains").is_dir() or not expand_or_nothing(load_params(ROOT / f"configs/{domain}.yaml")):
        subprocess.run([sys.executable, "scripts/fetch_domain_data.py", domain], check=True)
    command = [sys.executable, "-m", "headrace", "run", f"configs/{domain}.yaml", f"run.folder={folder}", *overrides]
    subprocess.run(command, check=True)
    return load_params(RunFolder(folder).params)


def expand_or_nothing(params: Params) -> bool:
    return all(Path(path).exists() for path in params.text.input)


# --- letters


def letters(params: Params) -> dict[str, Any]:
    language, run = params.text.language, RunFolder(params.run.folder)
    vocabulary = open_vocabulary(run.tokenizer)
    skipped = vocabulary.shared_characters + 1 if vocabulary.shared_characters else 0
    held_out, train = [], []
    for document in read_documents(expand_paths(params.text.input), "fasta", language=language):
        hashed = document_hash(document.split_key)
        (held_out if is_held_out(hashed, params.text.held_out) else train).append(document.text)
    assert len(held_out) == open_tokens(run.tokens).report["held_out"]["documents"]
    length = params.training.phases[-1].sequence_length
    model = AutoModelForCausalLM.from_pretrained(run.model.resolve()).eval()
    total = 0.0
    known = []
    for text, bits in zip(held_out, token_bits(model, vocabulary, held_out, length), strict=True):
        first = 1 if skipped else 0  # an overlapping k-mer at the beginning tells k letters at once
        has_entry, of_letters = known_letters(text, vocabulary)
        total += bits[first:][has_entry[first:]].sum()
        known.append(of_letters[skipped:])
    bits_of_ours = total / sum(map(np.sum, known))
    codes = {letter: i for i, letter in enumerate(LETTERS[language])}
    coded = {name: [np.array([codes.get(x, 0) for x in text]) for text in texts]
             for name, texts in (("train", train), ("held_out", held_out))}  # fmt: skip
    most = {"dna": 24, "protein": 9}[language]
    baseline = LetterModel(coded["train"], len(codes), most)
    table = {}
    scored = np.concatenate(known)
    for strength in (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0):
        found = np.concatenate([baseline.bits(text, strength)[:, skipped:] for text in coded["held_out"]], 1)
        table |= {(n, strength): float(bits[scored].mean()) for n, bits in enumerate(found)}
    best = min(table, key=lambda key: table[key])
    of_order = {n: min(table[key] for key in table if key[0] == n) for n in range(most + 1)}
    for n, bits in of_order.items():
        print(f"counts of the last {n} letters: {bits:.4f} bits a letter")
    print(f"ours: {bits_of_ours:.4f}")
    return {
        "unit": "bits a letter",
        "letters": int(sum(map(np.sum, known))),
        "documents": len(held_out),
        "ours": round(bits_of_ours, 4),
        "baseline": round(table[best], 4),
        "baseline_letters": best[0],
        "baseline_strength": best[1],
        "baseline_by_letters": {n: round(bits, 4) for n, bits in of_order.items()},
    }


@torch.no_grad()
def token_bits(model: Any, vocabulary: Vocabulary, texts: list[str], length: int) -> list[np.ndarray]:
    """-log2 p of every token of every text, from at most `length` before it, and at least half as many where there are."""
    rows: list[tuple[int, int, int, np.ndarray]] = []  # text, where the window begins, how many are context, ids
    bits: list[np.ndarray] = []
    for number, text in enumerate(texts):
        ids = np.array([vocabulary.sep_id, *vocabulary.encode_batch([text])[0]])
        bits.append(np.full(len(ids) - 1, np.nan))
        for start in range(0, max(len(ids) - 1 - length // 2, 1), length // 2):
            rows.append((number, start, length // 2 if start else 0, ids[start : start + length + 1]))
    rows.sort(key=lambda row: len(row[3]))
    for at in range(0, len(rows), BATCH):
        some = rows[at : at + BATCH]
        inputs = torch.full((len(some), len(some[-1][3]) - 1), vocabulary.pad_id)
        for i, (*_, ids) in enumerate(some):
            inputs[i, : len(ids) - 1] = torch.from_numpy(
                ids[:-1]
            )  # padding stands behind what is read: it changes nothing
        logits = model(input_ids=inputs, attention_mask=torch.ones_like(inputs)).logits.float().log_softmax(-1)
        for i, (number, start, context, ids) in enumerate(some):
            found = -logits[i, torch.arange(len(ids) - 1), torch.from_numpy(ids[1:])].numpy() / math.log(2)
            bits[number][start + context : start + len(found)] = found[context:]
    assert not any(np.isnan(each).any() for each in bits)
    return bits


def known_letters(text: str, vocabulary: Vocabulary) -> tuple[np.ndarray, np.ndarray]:
    """(which tokens have an entry, which letters those tell): letters without one are scored for neither side."""
    ids = np.array(vocabulary.encode_batch([text])[0])
    has_entry = ids != vocabulary.unk_id
    if vocabulary.shared_characters:
        return has_entry, np.concatenate([np.zeros(vocabulary.shared_characters, bool), has_entry])
    lengths = [len(vocabulary.token_text(i)) if i != vocabulary.unk_id else 1 for i in ids.tolist()]
    return has_entry, np.repeat(has_entry, lengths)


# --- time series


def forecasts(params: Params) -> dict[str, Any]:
    """The last held_out_points, a horizon at a time, of the series that trained and of others that never did."""
    run, given = RunFolder(params.run.folder), series_options(params.text)
    assert given is not None
    forecaster = open_forecaster(run.model.resolve(), given.length)
    results: dict[str, Any] = {"unit": "MASE (season 24), sMAPE in per cent", "horizon": HORIZON}
    scores: dict[str, list[list[float]]] = {}
    for kind, path in (("", params.text.input[0]), ("unseen_", str(ROOT / ".cache/domains/unseen.csv"))):
        for series in iter_series(Path(path), given):
            values, first = series.values, len(series.values) - given.held_out_points
            for origin in range(first, len(values) - HORIZON + 1, HORIZON):
                actual = values[origin : origin + HORIZON]
                median = np.median(forecaster.forecast(values[:origin], HORIZON, 50, origin), 0)
                guesses = [
                    median,
                    *(seasonal_naive(values[:origin], HORIZON, season) for season in (SEASON, 7 * SEASON)),
                ]
                scores.setdefault(kind + series.name.split(":")[1], []).append(
                    [mase(actual, guess, values[:first], SEASON) for guess in guesses]
                    + [smape(actual, guess) for guess in guesses]
                )
    forecaster.close()
    names = [f"{who}_{score}" for score in ("mase", "smape") for who in ("ours", "day_before", "week_before")]
    for series, found in scores.items():
        means = np.nanmean(found, axis=0)
        results[series] = {"origins": len(found)} | dict(zip(names, np.round(means, 4).tolist(), strict=True))
    seen = np.nanmean(
        np.concatenate([found for name, found in scores.items() if not name.startswith("unseen_")]), axis=0
    )
    return results | dict(zip(names, np.round(seen, 4).tolist(), strict=True))


# --- domain adaptation


def adaptation(params: Params, overrides: list[str]) -> dict[str, Any]:
    scratch = params.run.folder.with_name(params.run.folder.name + "-from-random")
    command = [sys.executable, "-m", "headrace", "run", "configs/biomedical.yaml", f"run.folder={scratch}"]
    subprocess.run([*command, *overrides, *MINILM_ANEW], check=True)
    ours, baseline = (read_records(RunFolder(folder).evaluations)[-1] for folder in (params.run.folder, scratch))
    vocabulary = open_vocabulary(RunFolder(params.run.folder).tokenizer)
    extension = vocabulary.extension
    return {
        "unit": "bits a hidden token",
        "hidden_tokens": ours["n_predicted_tokens"],
        "new_entries": len(extension.pieces) if extension else 0,
        "ours": round(ours["eval/loss"] / math.log(2), 4),
        "baseline": round(baseline["eval/loss"] / math.log(2), 4),
        "ours_accuracy": round(ours["eval/accuracy_masked_lm"], 4),
        "baseline_accuracy": round(baseline["eval/accuracy_masked_lm"], 4),
    }


if __name__ == "__main__":
    main()
