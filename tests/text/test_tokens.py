"""Tokens on disk: they decode to the text, the split is by hash and without overlap, and damage is named."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from headrace.errors import UserError
from headrace.run_folder import RunFolder
from headrace.text import prepare as prepare_module
from headrace.text.prepare import prepare
from headrace.text.source import word_rule
from headrace.text.tokens import (
    SPLITS,
    Shard,
    ShardBuilder,
    TokenFolder,
    document_hash,
    duplicate_documents,
    is_held_out,
    open_tokens,
    overlapping_documents,
    write_atomically,
)


def documents_on_disk(tokens: TokenFolder, split) -> list[tuple[int, list[np.ndarray]]]:
    """(hash, token ids of each sentence) of each document."""
    found = []
    for shard in tokens.shards(split):
        ends = [0, *shard.sentence_ends.tolist()]
        sentences = [shard.tokens[a:b] for a, b in pairwise(ends)]
        stops = [0, *shard.document_ends.tolist()]
        for d, hashed in enumerate(shard.document_hashes.tolist()):
            found.append((hashed, sentences[stops[d] : stops[d + 1]]))
    return found


@pytest.mark.parametrize("kind", ["unigram", "bpe", "character", "byte"])
def test_decoding_the_tokens_gives_the_text_in_order(prepared, kind):
    made = prepared(kind)
    vocabulary = made.vocabulary
    expected = {split: [] for split in SPLITS}
    for document in made.documents:
        hashed = document_hash("\n".join(document))
        expected["held_out" if is_held_out(hashed, made.params.text.held_out) else "train"].append((hashed, document))
    exact = unknown = 0
    for split in SPLITS:
        found = documents_on_disk(made.tokens, split)
        assert [hashed for hashed, _ in found] == [hashed for hashed, _ in expected[split]]
        for (_, sentences), (_, document) in zip(found, expected[split], strict=True):
            assert len(sentences) == len(document)
            for ids, sentence in zip(sentences, document, strict=True):
                if vocabulary.unk_id in ids:
                    unknown += 1
                else:
                    assert vocabulary.decode(ids) == vocabulary.normalize(sentence)
                    exact += 1
    assert exact > 1500
    assert (unknown > 0) == (kind != "byte")
    if kind in ("character", "byte"):
        assert made.tokens.report["characters"] == made.num_characters


def test_the_report_counts_what_is_on_disk(prepared):
    made = prepared()
    report, ids = made.tokens.report, []
    for split in SPLITS:
        documents = documents_on_disk(made.tokens, split)
        sentences = [s for _, each in documents for s in each]
        counted = {"documents": len(documents), "sentences": len(sentences), "tokens": sum(map(len, sentences))}
        assert report[split] == counted and counted["documents"] > 10
        ids += sentences
    assert len(made.tokens.shards("train")) > 8
    ids = np.concatenate(ids)
    assert report["unknown_token_rate"] == np.mean(ids == made.vocabulary.unk_id) > 0
    assert report["characters"] == made.num_characters
    assert report["characters_per_token"] == report["characters"] / len(ids)
    texts = ["\n".join(document) for document in made.documents]
    assert report["duplicate_documents"] == len(texts) - len(set(texts)) > 0
    assert report["read"]["documents"] == len(texts)
    commonest = report["commonest_token_ids"]
    frequency = np.bincount(ids)
    assert (np.diff(frequency[commonest]) <= 0).all() and len(set(commonest)) == len(commonest)
    assert set(range(5, len(frequency))) >= set(commonest) - {made.vocabulary.unk_id}


def test_several_processes_write_the_same_tokens_as_one(tmp_path, tiny_params, prepared, monkeypatch):
    made = prepared()
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", made.num_characters // 12)
    params = tiny_params(
        tmp_path / "run",
        made.params.text.input[0],
        text={"workers": 2, "vocabulary": made.params.text.vocabulary.model_dump(mode="json")},
    )
    run = RunFolder(params.run.folder)
    run.create()
    _, tokens = prepare(params, run)
    assert tokens.manifest["shards"] == made.tokens.manifest["shards"]
    assert tokens.manifest["vocabulary_sha256"] == made.tokens.manifest["vocabulary_sha256"]


@pytest.mark.parametrize("size, dtype", [(1000, np.uint16), (1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_ids_take_two_bytes_where_they_fit(tmp_path, size, dtype):
    builder = ShardBuilder(size)
    sentences = [np.array([5, size - 1]), np.array([size - 2])]
    starts = [np.array([True, False]), np.array([True])]
    builder.add_document(sentences, starts, 2**64 - 1)
    builder.add_document([np.arange(20)], [np.arange(20) % 3 == 0], 7)
    info = builder.write(tmp_path / "0.safetensors", tmp_path)
    assert info is not None and (info.num_documents, info.num_sentences, info.num_tokens) == (2, 3, 23)
    assert info.size_bytes == (tmp_path / "0.safetensors").stat().st_size
    shard = Shard(tmp_path, info)
    assert shard.tokens.dtype == dtype
    assert shard.tokens.tolist() == [5, size - 1, size - 2, *range(20)]
    assert shard.sentence_ends.tolist() == [2, 3, 23] and shard.document_ends.tolist() == [2, 3]
    assert shard.document_hashes.tolist() == [2**64 - 1, 7]
    bits = [True, False, True, *(i % 3 == 0 for i in range(20))]
    for start in range(23):
        for stop in range(start, 24):
            assert shard.starts_word(start, stop).tolist() == bits[start:stop]


def test_an_id_outside_the_vocabulary_never_reaches_the_disk(tmp_path):
    builder = ShardBuilder(100)
    builder.add_document([np.array([100])], [np.array([True])], 1)
    with pytest.raises(AssertionError, match="outside the vocabulary"):
        builder.write(tmp_path / "0.safetensors", tmp_path)
    assert not list(tmp_path.iterdir())
    assert ShardBuilder(100).write(tmp_path / "0.safetensors", tmp_path) is None


# --- damage


@pytest.fixture
def folder(tmp_path):
    """folder(train documents, held-out documents as hashes): a finished tokens folder made by hand, two shards each."""

    def make(train, held_out):
        shards = {}
        for split, hashes in (("train", train), ("held_out", held_out)):
            (tmp_path / split).mkdir(exist_ok=True)
            shards[split] = []
            for number, part in enumerate((hashes[::2], hashes[1::2])):
                builder = ShardBuilder(1000)
                for hashed in part:
                    builder.add_document([np.array([hashed % 990 + 5, 6, 7])], [np.ones(3, bool)], hashed)
                info = builder.write(tmp_path / split / f"{number:05d}.safetensors", tmp_path)
                if info is not None:
                    shards[split].append(vars_of(info))
        (tmp_path / "manifest.json").write_text(json.dumps({"vocabulary_size": 1000, "shards": shards, "report": {}}))
        return open_tokens(tmp_path)

    return make


def vars_of(info):
    return {name: getattr(info, name) for name in info.__slots__}


def test_a_damaged_or_truncated_or_missing_shard_is_named(folder):
    tokens = folder([1, 2, 3, 4], [5, 6])
    tokens.verify()
    path = tokens.folder / "train" / "00001.safetensors"
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[-30] ^= 1
    damages = [
        (bytes(flipped), "its checksum is not the one written"),
        (whole[:-1], rf"{len(whole) - 1:,} bytes, {len(whole):,} expected"),
        (b"", rf"0 bytes, {len(whole):,} expected"),
    ]
    for data, reason in damages:
        path.write_bytes(data)
        with pytest.raises(
            UserError, match=rf"train/00001\.safetensors: shard is damaged: {reason}.*delete it and run"
        ):
            tokens.verify()
    path.unlink()
    with pytest.raises(UserError, match=r"train/00001\.safetensors: shard is missing; run `headrace prepare`"):
        tokens.verify()
    path.write_bytes(whole)
    tokens.verify()


def test_tokens_that_are_not_finished_are_not_opened(tmp_path):
    with pytest.raises(UserError, match=r"holds no finished tokens; run `headrace prepare` first"):
        open_tokens(tmp_path)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_shard_is_made_anew_as_the_message_says(tmp_path, tiny_params, made_text, monkeypatch, damage):
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", 20_000)
    params = tiny_params(tmp_path / "run", made_text, text={"vocabulary": {"kind": "byte"}})
    run = RunFolder(params.run.folder)
    run.create()
    _, tokens = prepare(params, run)
    path = run.tokens / tokens.shards("train")[2].info.path
    whole = path.read_bytes()
    if damage == "flip":
        path.write_bytes(whole[:-100] + bytes([whole[-100] ^ 8]) + whole[-99:])
    elif damage == "truncate":
        path.write_bytes(whole[:-100])
    else:
        path.unlink()
    with pytest.raises(UserError, match=f"{path}: shard is .*run `headrace prepare`"):
        tokens.verify()
    path.unlink(missing_ok=True)
    _, again = prepare(params, run)
    again.verify()
    assert path.read_bytes() == whole


# --- the split


def test_the_held_out_share_is_decided_by_the_hash_of_the_text_alone(prepared):
    made = prepared()
    for split in SPLITS:
        for hashed, _ in documents_on_disk(made.tokens, split):
            assert (split == "held_out") == (hashed < 0.15 * 2**64)
    hashes = [document_hash(f"文書 {i}") for i in range(20_000)]
    for share in (0.01, 0.2):
        assert np.mean([is_held_out(hashed, share) for hashed in hashes]) == pytest.approx(
            share, abs=0.01 * share + 0.004
        )
    assert not is_held_out(0, 0.0)
    assert document_hash("a") == document_hash("a") != document_hash("b")
    assert 0 <= document_hash("\ud800") < 2**64  # lone surrogates come from odd JSON


def test_overlap_of_the_splits_is_found(folder):
    assert overlapping_documents(folder([1, 2, 3, 4], [5, 6])) == 0
    assert overlapping_documents(folder([1, 2, 3, 4], [5, 3])) == 1
    assert overlapping_documents(folder([1, 2, 3, 4, 4, 1], [4, 4, 1, 9])) == 2


def test_duplicates_are_counted(folder):
    assert duplicate_documents(folder([1, 2, 3, 4], [5, 6])) == 0
    assert duplicate_documents(folder([1, 2, 1, 1, 2], [5, 6, 5])) == 4


def test_overlap_and_duplicates_are_found_slice_by_slice(folder):
    """The hash space is cut into slices when there are more documents than fit into memory."""
    draw = np.random.default_rng(0)
    train = draw.integers(0, 2**64, 300, dtype=np.uint64).tolist()
    held_out = draw.integers(0, 2**64, 100, dtype=np.uint64).tolist()
    tokens = folder(train + train[:30], held_out + train[:7] + held_out[:5])
    for slice_documents in (1_000, 100, 10):
        assert overlapping_documents(tokens, slice_documents) == 7
        assert duplicate_documents(tokens, slice_documents) == 35


def test_prepare_refuses_a_split_that_overlaps(tmp_path, tiny_params, made_text, monkeypatch):
    """A chunk written under another share is what a broken split looks like."""
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", 20_000)
    params = tiny_params(tmp_path / "run", made_text, text={"vocabulary": {"kind": "byte"}})
    run = RunFolder(params.run.folder)
    run.create()
    _, tokens = prepare(params, run)
    first = tokens.shards("train")[0]
    record = run.tokens / "chunks" / "00000.json"
    chunk = json.loads(record.read_text("utf-8"))
    held_out = run.tokens / chunk["shards"]["held_out"]["path"]
    held_out.write_bytes((run.tokens / first.info.path).read_bytes())
    chunk["shards"]["held_out"] = {**vars_of(first.info), "path": held_out.relative_to(run.tokens).as_posix()}
    record.write_text(json.dumps(chunk), "utf-8")
    (run.tokens / "manifest.json").unlink()
    with pytest.raises(UserError, match="held-out documents also are in training"):
        prepare(params, run)
    assert not (run.tokens / "manifest.json").exists()


def test_other_settings_are_refused_and_named(tmp_path, tiny_params, made_text):
    def params_with(**text):
        return tiny_params(tmp_path / "run", made_text, text={"vocabulary": {"kind": "byte"}, **text})

    params = params_with()
    run = RunFolder(params.run.folder)
    run.create()
    prepare(params, run)
    prepare(params_with(workers=2), run)
    with pytest.raises(UserError, match=r"text\.held_out was 0\.15, now 0\.2"):
        prepare(params_with(held_out=0.2), run)
    with pytest.raises(UserError, match=r"text\.unicode was 'nfkc', now 'nfc'"):
        prepare(params_with(unicode="nfc"), run)
    made_text_changed = tmp_path / "changed.txt"
    made_text_changed.write_text(made_text.read_text("utf-8") + "もう一つ。\n", "utf-8")
    changed = params_with().model_copy(
        update={"text": params.text.model_copy(update={"input": [str(made_text_changed)]})}
    )
    with pytest.raises(UserError, match="files was"):
        prepare(changed, run)


def test_the_word_rule_follows_task_and_language(prepared, tiny_params):
    made = prepared()

    def rule(kind, whole_words=True, **text):
        params = tiny_params(made.run.root, made.params.text.input[0], text=text, task={"whole_words": whole_words})
        return word_rule(params, kind)

    assert rule("unigram", whole_words=False) == "marks"
    assert rule("unigram") == "mecab"
    assert rule("unigram", language="en") == "whitespace"
    assert rule("wordpiece_mecab") == "marks"
    assert rule("unigram", words="whitespace") == "whitespace"


def test_a_file_is_written_whole_or_not_at_all(tmp_path, files_of_at_most):
    path = tmp_path / "file"
    write_atomically(path, b"first")
    with (
        files_of_at_most(1000),
        pytest.raises(UserError, match=r"file: cannot be written \(File too large\); free space"),
    ):
        write_atomically(path, b"2" * 2000)
    assert path.read_bytes() == b"first" and [p.name for p in tmp_path.iterdir()] == ["file"]
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_stops_prepare_which_then_goes_on(tmp_path, tiny_params, prepared, files_of_at_most, monkeypatch):
    made = prepared("byte")
    monkeypatch.setattr(prepare_module, "CHUNK_CHARACTERS", made.num_characters // 12)
    params = tiny_params(tmp_path / "run", made.params.text.input[0], text={"vocabulary": {"kind": "byte"}})
    run = RunFolder(params.run.folder)
    run.create()
    sizes = [shard.info.size_bytes for shard in made.tokens.shards("train")]
    first_too_large = next(i for i, size in enumerate(sizes) if size > sizes[0])
    with (
        files_of_at_most(sizes[0]),
        pytest.raises(UserError, match=rf"{first_too_large:05d}\.safetensors: cannot be written \(File too large\)"),
    ):
        prepare(params, run)
    done = sorted(path.name for path in (run.tokens / "chunks").iterdir())
    assert done == [f"{i:05d}.json" for i in range(first_too_large)]
    assert not list(run.tokens.rglob("*.tmp"))
    _, tokens = prepare(params, run)
    tokens.verify()
    assert tokens.manifest["shards"] == made.tokens.manifest["shards"]


def test_shard_counts_in_the_manifest_are_those_of_the_arrays(prepared):
    tokens = prepared().tokens
    tokens.verify()
    for split in SPLITS:
        for shard in tokens.shards(split):
            counted = replace(
                shard.info,
                num_tokens=len(shard.tokens),
                num_sentences=len(shard.sentence_ends),
                num_documents=len(shard.document_ends),
            )
            assert counted == shard.info
            assert shard.sentence_ends[-1] == len(shard.tokens)
            assert shard.document_ends[-1] == len(shard.sentence_ends)
            assert (np.diff(shard.sentence_ends.astype(int)) > 0).all()
            assert (np.diff(shard.document_ends.astype(int)) > 0).all()
