"""Tags of tokens: loss as transformers', entities as its pipeline's, figures as counted by hand."""

import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import BAD, GOOD, OTHER, write_rows
from transformers import AutoTokenizer, BertForTokenClassification, pipeline

from headrace.cli.plan_stage import plan_stage
from headrace.cli.predict_stage import predict_stage
from headrace.cli.stages import run_stages
from headrace.errors import UserError
from headrace.labelled.features import FeatureRule, make_batch
from headrace.planning.device import choose_precision
from headrace.run_folder import RunFolder
from headrace.tasks import token_classification
from headrace.text.make_vocabulary import make_vocabulary
from headrace.text.vocabulary import train_vocabulary
from headrace.training.labelled_rows import open_labelled
from headrace.training.records import read_records
from headrace.training.setup import build_trainable


def marked(count: int, seed: int = 0) -> list[dict]:
    """Texts in which words of praise are entities `good`, of blame `bad`."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        text, entities = "", []
        for _ in range(draw.randint(2, 8)):
            word = draw.choice([*GOOD, *BAD, *OTHER, *OTHER])
            if word in GOOD or word in BAD:
                entities.append({"span": [len(text), len(text) + len(word)], "type": "good" if word in GOOD else "bad"})
            text += word + draw.choice([" ", "", "\u3000"])
        rows.append({"text": text, "spans": entities})
    return rows


def tagged(count: int, seed: int = 0) -> list[dict]:
    """Sentences of words that the tokenizer knows as words, tagged likewise."""
    draw, rows = random.Random(seed), []
    kinds = {"great": "B-good", "fine": "B-good", "awful": "B-bad", "poor": "B-bad"}
    for _ in range(count):
        words = [
            draw.choice(["great", "fine", "awful", "poor", "film", "the", "is", "on0", "a"])
            for _ in range(draw.randint(1, 9))
        ]
        rows.append({"tokens": words, "tags": [kinds.get(word, "O") for word in words]})
    return rows


def write_conll(path, rows: list[dict]):
    lines = ["".join(f"{word}\t{tag}\n" for word, tag in zip(row["tokens"], row["tags"], strict=True)) for row in rows]
    path.write_text("\n".join(lines), "utf-8")
    return path


def params_of(job, tmp_path, epochs=1, phase=None, count=80, **sections):
    data = {
        "train": str(write_rows(tmp_path / "tr.jsonl", marked(count))),
        "evaluation": str(write_rows(tmp_path / "ev.jsonl", marked(20, 1))),
        **sections.pop("data", {}),
    }
    training = {**job().training.model_dump(mode="json"), "peak_learning_rate": 6e-3, "phases": [
        {"sequence_length": 32, "batch_size": 8, "epochs": epochs, **(phase or {})}]}  # fmt: skip
    return job(task={"kind": "token_classification"}, data=data, training=training, **sections)


def opened(params):
    run = RunFolder(params.run.folder)
    run.create()
    return open_labelled(params, run, make_vocabulary(params, run, [], ""))


def test_the_loss_is_that_of_transformers(job, tmp_path):
    """The mean over the labelled tokens of the batch, whatever its microbatches."""
    params = params_of(job, tmp_path, model={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    source = opened(params)
    begun = build_trainable(source.params, source.vocabulary, choose_precision(params))
    assert begun.config.id2label == {0: "O", 1: "B-bad", 2: "I-bad", 3: "B-good", 4: "I-good"}
    plain = BertForTokenClassification(begun.config)
    with torch.no_grad():
        ours = {name: p for segment in begun.store.segments for name, p in segment.parameters.items()}
        for name, parameter in plain.named_parameters():
            parameter.copy_(ours[name])
    batch = make_batch(source.train.features[:9], FeatureRule(32, 0, 90, 32))
    assert len(batch.microbatches) > 1 and batch.num_targets > 30
    for microbatch in batch.microbatches:
        labels = np.full(microbatch.input_ids.size, -100)
        labels[microbatch.target_positions] = microbatch.target_ids
        inputs = {
            "input_ids": microbatch.input_ids,
            "token_type_ids": microbatch.token_type_ids,
            "attention_mask": (microbatch.example_ids > 0).astype("int64"),
            "labels": labels.reshape(microbatch.input_ids.shape),
        }
        expected = plain(**{name: torch.from_numpy(value) for name, value in inputs.items()}).loss
        found, summed = token_classification.training_loss(begun.model, microbatch, torch.device("cpu"), batch)
        share = len(microbatch.target_ids) / batch.num_targets
        assert found.item() == pytest.approx(expected.item() * share, rel=1e-6)
        assert summed.item() == pytest.approx(expected.item() * len(microbatch.target_ids), rel=1e-6)


def test_entities_of_a_run_are_those_of_the_pipeline(job, tmp_path):
    """Of Japanese with full-width and combining characters too, in the raw text; and a plan is made before."""
    params = params_of(job, tmp_path, epochs=4, count=160)
    plan_stage(params)
    run_stages(params)
    run = RunFolder(params.run.folder)
    best = max(read_records(run.evaluations), key=lambda record: record["eval/f1"])
    assert best["eval/f1"] > 0.3 and best["n_entities"] == sum(len(row["spans"]) for row in marked(20, 1))
    assert {"eval/f1/good", "eval/f1/bad", "eval/precision", "eval/recall"} <= set(best)
    lines = [json.loads(line) for line in run.predictions.read_text("utf-8").splitlines()]
    assert [line["truth"] for line in lines][:1] == [
        [{"start": e["span"][0], "stop": e["span"][1], "type": e["type"], "text": row["text"][slice(*e["span"])]}
         for e in row["spans"]] for row in marked(1, 1)]  # fmt: skip

    texts = [row["text"] for row in marked(15, 2)] + [
        "",
        "ｶﾞﾗｽ　がうれしい　great\u3000awful",
        "が\u3099良い",
        "x great",
    ]
    output = tmp_path / "out.jsonl"
    predict_stage(params, [str(write_rows(tmp_path / "in.jsonl", [{"text": text} for text in texts]))], output)
    found = [json.loads(line)["prediction"]["entities"] for line in output.read_text("utf-8").splitlines()]
    tokenizer = AutoTokenizer.from_pretrained(run.best)
    theirs = pipeline(
        "token-classification", model=str(run.best.resolve()), tokenizer=tokenizer, aggregation_strategy="simple"
    )
    for text, mine in zip(texts, found, strict=True):
        other = theirs(text) if text else []
        assert [(e["start"], e["stop"], e["type"]) for e in mine] == [
            (e["start"], e["end"], e["entity_group"]) for e in other
        ]
        np.testing.assert_allclose([e["score"] for e in mine], [e["score"] for e in other], atol=1e-5)
        assert all(text[e["start"] : e["stop"]] == e["text"] for e in mine)
    assert sum(map(len, found)) > 10


def test_tags_of_words_are_those_of_the_pipeline_and_streaming_changes_no_number(job, tmp_path):
    train, held_out = write_conll(tmp_path / "tr.txt", tagged(80)), write_conll(tmp_path / "ev.txt", tagged(20, 1))
    data = {"train": str(train), "evaluation": str(held_out), "format": "conll"}
    params = params_of(job, tmp_path, epochs=2, data=data)
    run_stages(params)
    run = RunFolder(params.run.folder)
    records = read_records(run.evaluations)
    assert records[-1]["eval/f1"] > 0.3
    disk = params_of(job, tmp_path, epochs=2, data=data, run={"folder": str(tmp_path / "disk"), "seed": 3},
                     device={"placement": "disk"})  # fmt: skip
    run_stages(disk)
    losses = [[r["loss"] for r in read_records(RunFolder(p.run.folder).metrics) if "loss" in r] for p in (params, disk)]
    assert losses[0] == losses[1] and len(losses[0]) == 20
    streamed = read_records(RunFolder(disk.run.folder).evaluations)
    assert [r["eval/loss"] for r in streamed] == pytest.approx([r["eval/loss"] for r in records], rel=1e-6)

    rows = [{"tokens": row["tokens"]} for row in tagged(12, 2)] + [{"tokens": []}]
    output = tmp_path / "out.jsonl"
    predict_stage(params, [str(write_rows(tmp_path / "in.jsonl", rows))], output)
    found = [json.loads(line)["prediction"]["tags"] for line in output.read_text("utf-8").splitlines()]
    assert found[-1] == []
    tokenizer = AutoTokenizer.from_pretrained(run.best)
    theirs = pipeline("token-classification", model=str(run.best.resolve()), tokenizer=tokenizer,
                      aggregation_strategy="first")  # fmt: skip
    number = 0
    for row, tags in zip(rows[:-1], found, strict=False):
        text, starts = " ".join(row["tokens"]), np.cumsum([0] + [len(word) + 1 for word in row["tokens"]])
        entities = [(starts[a], starts[b] - 1, kind) for a, b, kind in token_classification.runs_of_tags(tags)]
        assert entities == [(e["start"], e["end"], e["entity_group"]) for e in theirs(text)]
        number += len(entities)
    assert number > 10


def example(words=None, tags=None, text="", entities=None):
    return token_classification.Example("f:1", text, words, tags, entities)


def test_figures_are_those_of_a_hand(job, tmp_path):
    params = params_of(job, tmp_path, data={"labels": ["a", "b"]})
    Entity = token_classification.Entity
    examples = [
        example(("u", "v", "w", "x", "y"), ("B-a", "I-a", "O", "B-b", "O")),
        # one inside the other, which no tags of tokens can say: the inner one can only be missed
        example(text="0123456789", entities=(Entity(0, 4, "a"), Entity(1, 2, "b"), Entity(6, 8, "b"))),
    ]
    guesses = [
        {"tags": ["B-a", "I-a", "I-b", "B-b", "O"]},  # a and b found, one b too many
        {"entities": [{"start": 0, "stop": 4, "type": "a"}, {"start": 6, "stop": 9, "type": "b"}]},
    ]
    logits = np.log(np.array([[0.5, 0.2, 0.1, 0.1, 0.1], [0.1, 0.6, 0.1, 0.1, 0.1]]))
    features = [token_classification.Feature((), (), i, None, np.array([1]), np.array([i])) for i in range(2)]
    figures = token_classification.figures([logits, logits], guesses, features, examples, params)
    right, predicted, true = 3, 5, 5
    assert figures["eval/precision"] == pytest.approx(right / predicted)
    assert figures["eval/recall"] == pytest.approx(right / true)
    assert figures["eval/f1"] == pytest.approx(2 * right / (predicted + true))
    assert figures["eval/f1/a"] == 1.0 and figures["eval/f1/b"] == pytest.approx(2 * 1 / (3 + 3))
    assert figures["eval/loss"] == pytest.approx(-np.mean(np.log([0.1, 0.6])))
    assert figures["n_entities"] == 5 and figures["n_examples"] == 2
    nothing = token_classification.figures([logits], [{"tags": ["O"]}], features[:1], [example(("u",), ("O",))], params)
    assert nothing["eval/f1"] == 0.0 and nothing["n_entities"] == 0


def test_what_is_cut_counts_as_missed(job, tmp_path):
    rows = [{"text": "良い" + "本" * 20 + "良い", "spans": [[0, 2, "good"], [22, 24, "good"]]}] * 8
    write_rows(tmp_path / "ev2.jsonl", rows)
    params = params_of(job, tmp_path, phase={"sequence_length": 16}, data={"evaluation": str(tmp_path / "ev2.jsonl")})
    source = opened(params)
    assert source.held_out.notes[token_classification.CUT] == 8
    assert source.held_out.notes[token_classification.CUT_ENTITIES] == 8
    feature = source.held_out.features[0]
    assert len(feature.rows[0]) == 16 and feature.target_ids.tolist() == [3, 4] + [0] * 12
    logits = np.full((16, 5), -9.0)
    logits[np.arange(1, 15), feature.target_ids] = 9.0  # as right as can be
    task = token_classification
    examples, features = source.held_out.examples[:1], [feature]
    guesses = task.predictions([logits], features, examples, source.params)
    assert [(e["start"], e["stop"]) for e in guesses[0]["entities"]] == [(0, 2)]
    figures = task.figures([logits], guesses, features, examples, source.params)
    assert figures["eval/precision"] == 1.0 and figures["eval/recall"] == 0.5


def test_entities_that_tokens_cannot_say_are_counted(job, tmp_path):
    params = params_of(job, tmp_path, data={"labels": ["a"]})
    source = opened(params_of(job, tmp_path))
    examples = [
        example(text="本great店", entities=(token_classification.Entity(1, 5, "a"),)),  # half of a token
        example(text="本 店", entities=(token_classification.Entity(1, 2, "a"),)),  # a space, which no token has
        example(("本", "\u200b", "店"), ("O", "B-a", "I-a"), text="本\u200b店"),
    ]
    notes = Counter()
    found = token_classification.features(examples, params, source.vocabulary, 32, notes)
    assert notes[token_classification.UNMAPPABLE] == 1 and notes["entities without a token"] == 1
    assert notes[token_classification.NO_FIRST_TOKEN] == 1 and len(found[2].target_ids) == 2


def test_spans_lie_in_the_raw_text_where_the_vocabulary_normalises(job, tmp_path):
    """Logits as right as can be give exactly the entities back: full-width, half-width, combining and squared characters."""
    sentences = ["㍿ガスは東京へ行った。", "ｶﾞｽの株式会社は大阪へ来た。", "東京と大阪のガス会社が行った。"] * 9
    vocabulary, _ = train_vocabulary(sentences, tmp_path / "v", kind="character", size=60)
    rows = [("ｶﾞｽは㍿東京　大阪", ["ｶﾞｽ", "㍿", "東京", "大阪"]), ("か\u3099す　ＡＢ東京", ["か\u3099す", "東京"])]
    examples = []
    for text, names in rows:
        entities = tuple(token_classification.Entity(at := text.index(n), at + len(n), "a") for n in names)
        examples.append(example(text=text, entities=entities))
    params, task, notes = params_of(job, tmp_path, data={"labels": ["a", "b"]}), token_classification, Counter()
    features = task.features(examples, params, vocabulary, 32, notes)
    assert not any(notes.values())
    logits = []
    for feature in features:
        logits.append(np.zeros((feature.length, 5)))
        logits[-1][feature.target_positions, feature.target_ids] = 9.0
    guesses = task.predictions(logits, features, examples, params)
    for (text, names), guess in zip(rows, guesses, strict=True):
        assert [entity["text"] for entity in guess["entities"]] == names
        assert [text[entity["start"] : entity["stop"]] for entity in guess["entities"]] == names
    assert task.figures(logits, guesses, features, examples, params)["eval/f1"] == 1.0


def test_wrong_rows_are_told(job, tmp_path):
    def told(row, **data) -> str:
        params = params_of(job, tmp_path, data={"train": str(write_rows(tmp_path / "wrong.jsonl", [row])), **data})
        with pytest.raises(UserError) as error:
            opened(params)
        return str(error.value)

    assert "wrong.jsonl:1: 1 tags for 2 words" in told({"tokens": ["a", "b"], "tags": ["O"]})
    assert "3 is no tag" in told({"tokens": ["a"], "tags": [3]})
    assert "neither 'tokens' (words) nor 'text' (characters); fields found: x" in told({"x": 1})
    assert "there is no field 'spans'" in told({"text": "a"})
    assert "not one of the 1 rows has an entity" in told({"text": "a", "spans": []})
    good = {"text": "great", "spans": [[0, 5, "good"]]}
    assert "ev.jsonl" in (text := told(good)) and "type 'bad' is none of those that are learnt (good)" in text
    assert "type 'good' is none" in told(good, labels=["better"])


def test_a_folder_of_other_tags_is_refused(job, tmp_path):
    run_stages(params_of(job, tmp_path, phase={"epochs": None, "steps": 1}))
    with pytest.raises(UserError, match=r"labels of data are O, B-good.* was trained for O, B-bad"):
        opened(params_of(job, tmp_path, run={"folder": str(tmp_path / "other")}, data={"labels": ["good", "bad"]},
                         model={"init_from": str(tmp_path / "run")}))  # fmt: skip
