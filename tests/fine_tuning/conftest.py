"""A small pretrained model to start from, and rows that can be learnt."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast

from headrace.params import Params, validate_params

GOOD = ["良い", "楽しい", "うれしい", "great", "fine"]
BAD = ["悪い", "つらい", "かなしい", "awful", "poor"]
OTHER = ["本", "映画", "旅", "店", "the", "film", "is", "was", "とても", "、", "。", "ＡＢ", "ｶﾞﾗｽ", "が\u3099"]


@pytest.fixture(scope="session")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face folder: a masked language model of random weights and a WordPiece tokenizer of characters and words."""
    folder = tmp_path_factory.mktemp("pretrained")
    characters = sorted({c for word in (*GOOD, *BAD, *OTHER) for c in word} | set("ガABab0123456789アイ\u3099"))
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *characters,
        *(f"##{c}" for c in characters),
        "great",
        "awful",
    ]
    (folder / "vocab.txt").write_text("\n".join(pieces), "utf-8")
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=False, strip_accents=False)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, pad_token_id=0,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


def sentences(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Texts of which a word tells the label, and a number that its count decides."""
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        label = draw.choice(["bad", "good"])
        words = [draw.choice(OTHER) for _ in range(draw.randint(1, 8))]
        told = draw.randint(1, 3)
        for _ in range(told):
            words.insert(draw.randint(0, len(words)), draw.choice(GOOD if label == "good" else BAD))
        rows.append({"text": " ".join(words), "label": label, "score": told if label == "good" else -told})
    return rows


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


@pytest.fixture
def job(pretrained: Path, tmp_path: Path) -> Callable[..., Params]:
    """Params of a run on 120 rows, 30 to evaluate on; sections given are laid over it."""

    def make(**sections: dict[str, Any]) -> Params:
        train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
        if not train.exists():
            write_rows(train, sentences(120))
            write_rows(held_out, sentences(30, seed=1))
        tree: dict[str, Any] = {
            "run": {"folder": str(tmp_path / "run"), "seed": 3},
            "model": {"init_from": str(pretrained)},
            "task": {"kind": "classification"},
            "data": {"train": str(train), "evaluation": str(held_out)},
            "training": {
                "phases": [{"sequence_length": 32, "batch_size": 8, "epochs": 2}],
                "peak_learning_rate": 1e-3,
                "input_workers": 0,
                "log_every": 1,
            },
        }
        for name, section in sections.items():
            tree[name] = {**tree.get(name, {}), **section}
        return validate_params(tree)

    return make
