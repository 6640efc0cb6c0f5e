"""Made text, tiny params and prepared run folders, all from fixed seeds, shared by the tests of the numbers."""

import random
import resource
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from headrace.params import Params, validate_params
from headrace.run_folder import RunFolder
from headrace.text import prepare as prepare_module
from headrace.text.prepare import prepare
from headrace.text.tokens import TokenFolder
from headrace.text.vocabulary import Vocabulary

_JA = (
    ["私", "彼女", "パンダ", "ハンダ職人", "東京の学生", "先生", "古い友達"],
    ["図書館", "大学の庭", "ガラス工場", "駅", "小さな村", "海の近くの家"],
    ["日本語", "英語の歌", "硝子の瓶", "二つの本", "新聞", "長い手紙"],
    ["勉強している", "食べた", "買いました", "見なかった", "忘れてしまった"],
)
_EN = (
    ["The quick dog", "A student", "Smith", "The old teacher", "Nobody", "My Japanese friend"],
    ["in the library", "near the station", "at home", "behind the glassworks", "far away"],
    ["a newspaper", "two books", "the longest letter", "an English song", "the unbelievably old house"],
    ["reads", "forgets", "sold", "remembered", "understands"],
)


def made_documents(num_documents: int, seed: int) -> list[list[str]]:
    """Documents as lists of sentences: Japanese or English, 1 to 16 sentences, a few sentences very long, 3 % of the
    documents repeat an earlier one, and rare characters that a small vocabulary doesn't hold."""
    draw = random.Random(seed)
    documents: list[list[str]] = []
    for _ in range(num_documents):
        if documents and draw.random() < 0.03:
            documents.append(draw.choice(documents))
            continue
        japanese = draw.random() < 0.6
        documents.append([_sentence(draw, japanese) for _ in range(draw.choice([1, 2, 3, 5, 8, 12, 16]))])
    return documents


def made_characters(documents: list[list[str]]) -> int:
    return sum(len(sentence) for document in documents for sentence in document)


def _sentence(draw: random.Random, japanese: bool) -> str:
    clauses = []
    for _ in range(draw.choice([1, 1, 1, 2, 2, 5])):
        who, where, what, did = (draw.choice(words) for words in (_JA if japanese else _EN))
        number = f"{draw.randrange(100)}" if draw.random() < 0.3 else ""
        rare = draw.choice("𠮷鑿囍龘") if draw.random() < 0.02 else ""
        clauses.append(
            f"{who}{rare}は{where}で{number}{what}を{did}" if japanese else f"{who} {did} {number} {what} {where}"
        )
    return "、".join(clauses) + "。" if japanese else ", ".join(" ".join(clause.split()) for clause in clauses) + "."


@dataclass(frozen=True)
class Prepared:
    """A run folder with its vocabulary and tokens, and the documents they were made of."""

    params: Params
    run: RunFolder
    vocabulary: Vocabulary
    tokens: TokenFolder
    documents: list[list[str]]

    @property
    def num_characters(self) -> int:
        return made_characters(self.documents)


def write_documents(path: Path, documents: list[list[str]]) -> Path:
    """One sentence a line, a blank line between documents."""
    path.write_text("\n\n".join("\n".join(document) for document in documents) + "\n", "utf-8")
    return path


def _tiny_params(folder: Path, text_file: Path, **sections: dict[str, Any]) -> Params:
    tree: dict[str, dict[str, Any]] = {
        "run": {"folder": str(folder), "seed": 3},
        "text": {"input": str(text_file), "format": "sentence_per_line", "held_out": 0.15, "workers": 1},
        "model": {
            "preset": "bert-tiny",
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 56,
            "max_position_embeddings": 64,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "task": {"examples": "sentence_pairs"},
        "training": {
            "phases": [{"sequence_length": 32, "batch_size": 8, "steps": 5, "packing": False}],
            "learning_rate": 1e-3,
            "input_workers": 0,
        },
        "evaluation": {},
        "device": {"kind": "cpu", "precision": "fp32"},
    }
    tree["text"]["vocabulary"] = {"kind": "unigram", "size": 203}  # odd sizes reach the tails of the kernels
    for section, values in sections.items():
        tree[section] |= values
    return validate_params(tree)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)  # models of these tests are too small for more, which only wait for each other


@pytest.fixture(scope="session")
def tiny_params() -> Callable[..., Params]:
    """tiny_params(run folder, text file, section={key: value}, ...): validated params of a model of two small blocks."""
    return _tiny_params


@pytest.fixture(scope="session")
def made_text(tmp_path_factory) -> Path:
    """A file of 240 made documents, one sentence a line."""
    return write_documents(tmp_path_factory.mktemp("text") / "made.txt", made_documents(240, seed=5))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Callable[..., Prepared]:
    """prepared(kind, whole_words, num_documents): vocabulary and tokens in about 12 shards, each made once a session."""
    made: dict[tuple[Any, ...], Prepared] = {}
    sizes = {"bpe": 320, "wordpiece": 300, "wordpiece_mecab": 230, "byte": 261, "character": 200}

    def get(kind: str = "unigram", whole_words: bool = False, num_documents: int = 240) -> Prepared:
        name = (kind, whole_words, num_documents)
        if name not in made:
            if kind == "wordpiece_mecab":
                pytest.importorskip("fugashi")
            root = tmp_path_factory.mktemp(f"{kind}-{num_documents}")
            documents = made_documents(num_documents, seed=5)
            file = write_documents(root / "made.txt", documents)
            vocabulary = {"kind": kind, "size": sizes.get(kind, 203), "character_coverage": 0.999}
            params = _tiny_params(
                root / "run", file, text={"vocabulary": vocabulary}, task={"whole_words": whole_words}
            )
            run = RunFolder(params.run.folder)
            run.create()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(prepare_module, "CHUNK_CHARACTERS", made_characters(documents) // 12)
                made[name] = Prepared(params, run, *prepare(params, run), documents)
        return made[name]

    return get


@contextmanager
def _files_of_at_most(num_bytes: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="session")
def files_of_at_most() -> Callable[[int], AbstractContextManager[None]]:
    """with files_of_at_most(num_bytes): the kernel refuses to write more into one file, as a full disk or quota would."""
    return _files_of_at_most
