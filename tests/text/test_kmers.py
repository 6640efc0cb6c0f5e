"""k-mers: the saved tokenizer gives the ids we train on, text comes back, and a masked base is in no k-mer that is seen."""

import random

import numpy as np
import pytest
from transformers import AutoTokenizer

from headrace.params import validate_params
from headrace.run_folder import RunFolder
from headrace.tasks import task_of
from headrace.text.batches import example_rows
from headrace.text.examples import every_example
from headrace.text.masking import MaskRule, mask
from headrace.text.prepare import prepare
from headrace.text.random import key
from headrace.text.sentences import overlapping_pieces
from headrace.text.vocabulary import load_vocabulary, train_vocabulary


def sequences(count, letters="ACGT", seed=0, most=120):
    draw = random.Random(seed)
    return ["".join(draw.choices(letters, k=draw.randint(0, most))) for _ in range(count)]


@pytest.mark.parametrize("overlapping", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 6])
def test_auto_tokenizer_gives_the_same_ids_and_the_text_comes_back(tmp_path, k, overlapping):
    vocabulary, _ = train_vocabulary([], tmp_path / "v", kind="kmer", k=k, overlapping=overlapping, unicode="none")
    assert vocabulary.size == 5 + 4**k + (4 if not overlapping and k > 1 else 0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "v")
    for text in [*sequences(60), *sequences(40, "ACGTacgtuNRn", 1), "ACG[MASK]ACG" if not overlapping else ""]:
        ids = vocabulary.encode_batch([text])[0]
        if "[" not in text:
            assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids, text
        if set(text) <= set("ACGT") and (not overlapping or len(text) >= k):
            assert vocabulary.decode(ids) == text
            assert vocabulary.round_trips(text, ids)
    assert tokenizer("ACGTACGTAC")["input_ids"][0] == vocabulary.cls_id


def test_overlapping_kmers_by_hand(tmp_path):
    vocabulary, _ = train_vocabulary([], tmp_path / "v", kind="kmer", k=3, unicode="none")
    ids = vocabulary.encode_batch(["acgNTTT", "AC"])
    assert [vocabulary.token_text(i) for i in ids[0]] == ["ACG", "[UNK]", "[UNK]", "[UNK]", "TTT"]
    assert ids[1] == []
    again = load_vocabulary(tmp_path / "v", tmp_path / "w", causal=True)
    assert again.encode_batch(["acgNTTT"]) == ids[:1] and again.shared_characters == 2


def test_pieces_of_a_sequence_lose_no_kmer_and_repeat_none():
    text = "".join(random.Random(1).choices("ACGT", k=1000))
    for length, shared in ((10, 5), (100, 5), (999, 3), (1000, 7), (1001, 0)):
        pieces = overlapping_pieces(text, length, shared)
        kmers = [piece[i : i + shared + 1] for piece in pieces for i in range(len(piece) - shared)]
        assert kmers == [text[i : i + shared + 1] for i in range(len(text) - shared)]


@pytest.mark.parametrize("k", [3, 6])
def test_no_masked_base_is_in_a_kmer_that_is_seen(k):
    """Of every run that does not stay as it is, the base that all of it shares is hidden, whatever else is seen."""
    unk, mask_id = 1, 4
    draw = np.random.default_rng(0)
    lengths = [int(n) for n in draw.integers(1, 130, 200)]
    ids, example, special = [], [], []
    for e, length in enumerate(lengths):
        ids += [2, *np.where(draw.random(length) < 0.01, unk, draw.integers(5, 5 + 4**k, length)), 3]
        example += [e] * (length + 2)
        special += [True] + [False] * length + [True]
    ids, example, special = np.array(ids), np.array(example), np.array(special)
    keys = np.array([key("test", e) for e in range(len(lengths))], np.uint64)
    rule = MaskRule(0.15, 20, False, mask_id, unk, np.arange(5, 5 + 4**k), span=k)
    out = mask(ids, example, ~special, special, keys, rule)
    runs = out.positions.reshape(-1, k)
    assert (np.diff(runs, axis=1) == 1).all() and (example[runs] == example[runs[:, :1]]).all()
    assert (ids[runs] != unk).all() and len(runs) > 200
    seen = out.input_ids
    kinds = np.stack([seen[runs] == mask_id, seen[runs] == ids[runs]])  # all of a run shares one fate
    assert (kinds[0].all(1) | ~kinds[0].any(1)).all()
    stays = kinds[1].all(1)
    assert 0.05 < stays.mean() < 0.16 and 0.73 < kinds[0].all(1).mean() < 0.87
    told = np.ones(len(ids), bool)  # k-mers that say something true of their bases
    told[runs[~stays]] = False
    for run in runs[~stays]:
        hidden_base = run[-1]  # the first base of the last k-mer is the last base of the first one
        holding = np.arange(hidden_base - k + 1, hidden_base + 1)  # the k-mers the base lies in
        assert not told[holding].any()
    # 15 % of the tokens at most, and no less than a run a piece would leave over.
    share = len(out.positions) / (~special).sum()
    assert 0.10 < share <= 0.15 + 200 * k / (~special).sum()


def prepared(tmp_path, vocabulary, texts, preset="bert-tiny"):
    (tmp_path / "in.fa").write_text("".join(f">{i}\n{s}\n" for i, s in enumerate(texts)))
    params = validate_params(
        {
            "run": {"folder": tmp_path / "run"},
            "text": {
                "input": str(tmp_path / "in.fa"),
                "format": "fasta",
                "language": "dna",
                "held_out": 0.1,
                "workers": 1,
                "vocabulary": vocabulary,
            },
            "model": {"preset": preset},
            "task": {"kind": "masked_lm", "examples": "documents"},
            "training": {"phases": [{"sequence_length": 64, "batch_size": 8, "steps": 1}], "learning_rate": 1e-3},
        }
    )
    run = RunFolder(tmp_path / "run")
    run.create()
    return params, *prepare(params, run)


@pytest.mark.parametrize(
    ("vocabulary", "letters_a_token"),
    [
        ({"kind": "bpe", "size": 100}, (2.0, 6.0)),
        ({"kind": "character", "size": 20}, (1.0, 1.0)),
        ({"kind": "kmer", "k": 4, "overlapping": False}, (3.9, 4.0)),
        ({"kind": "kmer", "k": 4}, (1.0, 1.01)),
    ],
    ids=["bpe", "character", "every k-th", "overlapping"],
)
def test_every_base_of_long_sequences_becomes_tokens(tmp_path, vocabulary, letters_a_token):
    """Longer than what trainers and tokenizers get at once."""
    texts = ["".join(random.Random(i).choices("ACGT", k=70_001)) for i in range(3)]
    _, opened, tokens = prepared(tmp_path, vocabulary, texts)
    report = tokens.report
    low, high = letters_a_token
    assert low <= report["characters_per_token"] <= high and report["unknown_token_rate"] == 0
    assert report["round_trips_lossy"] == 0 and report["round_trips_tried"] > 0
    found = []
    for shard in tokens.shards("train") + tokens.shards("held_out"):
        ends = shard.sentence_ends[shard.document_ends - 1]
        found += [opened.decode(part) for part in np.split(shard.tokens, ends)[:-1]]
    if vocabulary["kind"] != "bpe":  # which marks where a piece of a sentence begins
        assert sorted(found) == sorted(texts)


def test_a_batch_of_dna_masks_runs(tmp_path):
    params, vocabulary, tokens = prepared(tmp_path, {"kind": "kmer", "k": 4}, sequences(60, most=600))
    assert vocabulary.size == 261 and tokens.report["unknown_token_rate"] == 0
    task, shards = task_of(params), tokens.shards("train")
    rule = task.example_rule(params, 64, "phase-0", 1)
    spans, keys = zip(*every_example(shards, rule), strict=True)
    batch = task.batch_rule(params, vocabulary, 64, 4096).batch(shards, spans, keys)
    assert batch.num_targets % 4 == 0 and batch.num_targets > 100
    for ids, _ in example_rows(batch):
        masked = np.flatnonzero(ids == vocabulary.mask_id)
        starts = masked[np.diff(masked, prepend=-2) > 1]
        assert all((ids[start : start + 4] == vocabulary.mask_id).all() for start in starts)
