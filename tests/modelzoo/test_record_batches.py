"""Batches of records give the losses that the plain transformers models give on the arrays of the files."""

import gc
import gzip

import numpy as np
import pytest
import torch
from record_files import CLS, MASK, SEP, VOCABULARY_SIZE, bert_arrays, gpt_arrays, write
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import BertConfig, BertForPreTraining, GPT2Config, GPT2LMHeadModel

from headrace.modelzoo.records.record_batches import RecordBatchRule, batch_of_records, batches_from, every_batch
from headrace.modelzoo.records.record_set import open_records
from headrace.tasks import causal_lm, masked_lm
from headrace.text.batches import Batch
from headrace.text.examples import Cursor
from headrace.text.masking import MaskRule

CPU = torch.device("cpu")
RULE = RecordBatchRule(sequence_length=24, pad_id=0, microbatch_tokens=100)


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
    )
    return BertForPreTraining(config).eval()


def keys(count):
    return np.arange(count, dtype=np.uint64)


def ours(task, model, batch: Batch) -> tuple[float, list[float]]:
    """The batch's loss, and its losses by name as they are recorded."""
    loss, sums = 0.0, torch.zeros(2)
    with torch.no_grad():
        for microbatch in batch.microbatches:
            share, nlls = task.training_loss(model, microbatch, CPU, batch)
            loss += share.item()
            sums[: len(nlls)] += nlls
    return loss, [value for value in task.losses(sums.tolist()[: len(nlls)], batch).values() if value is not None]


def labels_of(arrays) -> torch.Tensor:
    """transformers' labels (B, S), written down by hand: the true id where a weight is 1, -100 elsewhere."""
    labels = np.full(arrays["input_ids"].shape, -100)
    for k, weights in enumerate(arrays["masked_lm_weights"]):
        for position, target, weight in zip(
            arrays["masked_lm_positions"][k], arrays["masked_lm_ids"][k], weights, strict=True
        ):
            if weight == 1:
                labels[k, position] = target
    return torch.from_numpy(labels)


@pytest.mark.parametrize("buckets", [None, (8, 16)])
def test_static_pairs_equal_transformers(bert, buckets):
    arrays = bert_arrays(20)
    rule = RecordBatchRule(24, 0, 100, buckets=buckets)
    batch = batch_of_records(arrays, keys(20), rule)
    with torch.no_grad():
        expected = bert(
            input_ids=torch.from_numpy(arrays["input_ids"]),
            attention_mask=torch.from_numpy(arrays["input_mask"]),  # the file's 1 = token is transformers' too
            token_type_ids=torch.from_numpy(arrays["segment_ids"]),
            labels=labels_of(arrays),
            next_sentence_label=torch.from_numpy(arrays["next_sentence_labels"]),  # 1 = random next in both
        ).loss.item()
    loss, (masked, pair) = ours(masked_lm, bert, batch)
    assert loss == pytest.approx(expected, rel=2e-6) and masked + pair == pytest.approx(expected, rel=2e-6)
    assert len(batch.microbatches) > 2 and batch.num_pairs == batch.num_examples == 20
    assert batch.num_targets == int(arrays["masked_lm_weights"].sum())
    assert batch.num_tokens == int(arrays["input_mask"].sum()) and batch.num_slots < 20 * 24
    lengths = {microbatch.input_ids.shape[1] for microbatch in batch.microbatches}
    assert buckets is None or lengths <= {8, 16, 24}


def test_mlm_only_equals_transformers(bert):
    arrays = bert_arrays(10, seed=3)
    mlm_only = {name: arrays[name] for name in arrays if name not in ("segment_ids", "next_sentence_labels")}
    with torch.no_grad():
        logits = bert(
            input_ids=torch.from_numpy(arrays["input_ids"]), attention_mask=torch.from_numpy(arrays["input_mask"])
        ).prediction_logits
        expected = F.cross_entropy(logits.flatten(0, 1), labels_of(arrays).flatten(), ignore_index=-100).item()
    loss, losses = ours(masked_lm, bert, batch_of_records(mlm_only, keys(10), RULE))
    assert losses == [pytest.approx(loss)] and loss == pytest.approx(expected, rel=2e-6)
    without_pairs = RecordBatchRule(24, 0, 100, use_pairs=False)
    zero_types = {**arrays, "segment_ids": np.zeros_like(arrays["segment_ids"])}
    assert ours(masked_lm, bert, batch_of_records(zero_types, keys(10), without_pairs))[0] == pytest.approx(loss)


def test_masks_with_holes_and_targets_behind_the_last_token(bert):
    """Odd files mean what transformers would make of them."""
    arrays = bert_arrays(6, seed=4)
    arrays["input_mask"][:, 3] = 0
    arrays["masked_lm_positions"][0, 0], arrays["masked_lm_weights"][0] = 23, [1, 0, 0, 0]
    arrays["input_mask"][0, 10:] = 0
    arrays["input_ids"][0, 10:] = 0
    arrays["masked_lm_weights"][1] = 0
    with torch.no_grad():
        expected = bert(
            input_ids=torch.from_numpy(arrays["input_ids"] * arrays["input_mask"]),
            attention_mask=torch.from_numpy(arrays["input_mask"]),
            token_type_ids=torch.from_numpy(arrays["segment_ids"] * arrays["input_mask"]),
            labels=labels_of(arrays),
            next_sentence_label=torch.from_numpy(arrays["next_sentence_labels"]),
        ).loss.item()
    assert ours(masked_lm, bert, batch_of_records(arrays, keys(6), RULE))[0] == pytest.approx(expected, rel=2e-6)


def test_gpt_equals_transformers():
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=VOCABULARY_SIZE, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    ).eval()
    arrays = gpt_arrays(12)
    arrays["input_mask"][5] = 0
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(arrays["input_ids"])).logits
        counts = torch.from_numpy(arrays["input_mask"]) == 1
        expected = F.cross_entropy(logits[counts], torch.from_numpy(arrays["labels"])[counts]).item()
    batch = batch_of_records(arrays, keys(12), RULE)
    assert ours(causal_lm, model, batch)[0] == pytest.approx(expected, rel=2e-6)
    assert batch.num_targets == int(arrays["input_mask"].sum()) and batch.num_pairs == 0


def token_arrays(count: int) -> dict[str, np.ndarray]:
    arrays = bert_arrays(count, seed=5)
    ids, lengths = arrays["input_ids"], arrays["input_mask"].sum(1)
    ids[ids == MASK] = 77
    ids[np.arange(count), lengths // 2] = ids[np.arange(count), lengths - 1] = SEP
    names = ("input_ids", "input_mask", "segment_ids", "next_sentence_labels")
    return {**{name: arrays[name] for name in names}, "starts_word": (ids % 3 > 0).astype(np.int64)}


@pytest.mark.parametrize("whole_words", [False, True])
def test_token_records_are_masked_at_load(whole_words):
    arrays = token_arrays(40)
    mask = MaskRule(0.15, 4, whole_words, MASK, 1, np.arange(5, VOCABULARY_SIZE))
    rule = RecordBatchRule(24, 0, 100, mask=mask, unmasked_ids=(0, CLS, SEP, MASK))
    batch = batch_of_records(arrays, keys(40), rule)
    assert batch.digest == batch_of_records(arrays, keys(40), rule).digest
    assert batch.digest != batch_of_records(arrays, keys(40) + np.uint64(1), rule).digest
    restored, seen, num_targets, labels = [], [], [], []
    for microbatch in batch.microbatches:
        ids = microbatch.input_ids.copy().ravel()
        original = ids.copy()
        ids[microbatch.target_positions] = microbatch.target_ids
        assert not np.isin(microbatch.target_ids, (0, CLS, SEP, MASK)).any()
        for row in range(microbatch.num_examples):
            restored.append(tuple(ids.reshape(microbatch.input_ids.shape)[row][microbatch.example_ids[row] > 0]))
            num_targets.append(int((microbatch.target_positions // microbatch.input_ids.shape[1] == row).sum()))
        seen.append(original[microbatch.target_positions])
        labels += microbatch.labels.tolist()
    assert sorted(restored) == sorted(
        tuple(ids[ids_mask > 0]) for ids, ids_mask in zip(arrays["input_ids"], arrays["input_mask"], strict=True)
    )
    assert min(num_targets) >= 1 and max(num_targets) <= 4 and sum(labels) == arrays["next_sentence_labels"].sum()
    assert 0.6 < (np.concatenate(seen) == MASK).mean() < 0.95


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    arrays = bert_arrays(37)
    arrays["input_ids"][:, 1] = 100 + np.arange(37)  # which record it is
    for k, numbers in enumerate(np.split(np.arange(37), [10, 25])):
        write(folder / f"x-{k}.tfrecords", {name: values[numbers] for name, values in arrays.items()})
    return open_records(folder)


def stream(records, num_batches, cursor=Cursor(), **more):  # noqa: B008
    return list(
        batches_from(records, RULE, batch_size=8, cursor=cursor, num_batches=num_batches, seed=3, phase="p", **more)
    )


def record_ids(batch: Batch) -> list[int]:
    return sorted(np.concatenate([microbatch.input_ids[:, 1] - 100 for microbatch in batch.microbatches]).tolist())


def test_every_epoch_holds_every_record_once(records):
    batches = stream(records, 37)  # 8 epochs exactly
    numbers = [number for batch, _ in batches for number in record_ids(batch)]
    assert np.bincount(numbers).tolist() == [8] * 37
    assert batches[-1][1] == Cursor(8, 0, 0) and batches[4][1] == Cursor(1, 0, 3)
    in_order = stream(records, 2, shuffle=False)
    assert [record_ids(batch) for batch, _ in in_order] == [list(range(8)), list(range(8, 16))]


def test_resumes_exactly_at_every_cursor(records):
    batches = stream(records, 12)
    for done, (_, cursor) in enumerate(batches, 1):
        rest = stream(records, 12 - done, Cursor.from_state(cursor.state()))
        assert [batch.digest for batch, _ in rest] == [batch.digest for batch, _ in batches[done:]]


@pytest.mark.parametrize("num_workers", [2, 3, 5])
def test_workers_share_the_batches_without_overlap(records, num_workers):
    whole = [batch.digest for batch, _ in stream(records, 12)]
    for worker in range(num_workers):
        mine = stream(records, 12, worker=worker, num_workers=num_workers)
        assert [batch.digest for batch, _ in mine] == whole[worker::num_workers]


class Stream(IterableDataset):
    def __init__(self, records):
        self.records = records

    def __iter__(self):
        info = get_worker_info()
        assert info is not None
        for batch, _ in stream(self.records, 11, worker=info.id, num_workers=info.num_workers):
            yield batch.digest


def test_worker_processes_read_an_unpacked_file(tmp_path):
    """A gzip set is unpacked once for all workers, and stays until the set is let go."""
    path = write(tmp_path / "x.tfrecords", bert_arrays(40))
    path.write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "unpacked").mkdir()
    opened = open_records(path, unpack_folder=tmp_path / "unpacked")
    whole = [batch.digest for batch, _ in stream(opened, 11)]
    loader = DataLoader(Stream(opened), batch_size=None, num_workers=2)
    assert list(loader) == whole and list(loader) == whole
    del opened, loader
    gc.collect()
    assert not list((tmp_path / "unpacked").iterdir())


def test_evaluation_takes_every_record_in_file_order(records):
    batches = list(every_batch(records, RULE, 8))
    assert [number for batch in batches for number in record_ids(batch)] == list(range(37))
    assert batches[-1].num_examples == 5
