"""Answers in contexts: loss as transformers', answers as its model and tokenizer give them, figures as counted by hand."""

import json
import random
from collections import Counter

import numpy as np
import pytest
import torch
from conftest import BAD, GOOD, OTHER, write_rows
from transformers import AutoModelForQuestionAnswering, AutoTokenizer, BertForQuestionAnswering

from headrace.cli.plan_stage import plan_stage
from headrace.cli.predict_stage import predict_stage
from headrace.cli.stages import run_stages
from headrace.errors import UserError
from headrace.labelled.features import FeatureRule, make_batch
from headrace.labelled.scripts import is_unspaced
from headrace.planning.device import choose_precision
from headrace.run_folder import RunFolder
from headrace.tasks import question_answering
from headrace.tasks.gold_spans import gold_spans, unmappable_spans
from headrace.tasks.squad_metrics import exact_and_f1
from headrace.text.make_vocabulary import make_vocabulary
from headrace.text.vocabulary import load_vocabulary, train_vocabulary
from headrace.training.labelled_rows import open_labelled
from headrace.training.records import read_records
from headrace.training.setup import build_trainable

LENGTH, STRIDE = 24, 6


def asked(count: int, seed: int = 0, unanswerable: bool = False) -> list[dict]:
    """Contexts in which one word of praise or of blame is the answer, some of several windows."""
    draw, rows = random.Random(seed), []
    for i in range(count):
        kind = draw.choice(["良い?", "awful?"])
        words = [draw.choice(OTHER) for _ in range(draw.randint(1, 14))]
        answer = draw.choice(GOOD if kind == "良い?" else BAD)
        at = draw.randint(0, len(words))
        has = not (unanswerable and draw.random() < 0.4)
        context = " ".join([*words[:at], *([answer] if has else []), *words[at:]])
        start = len(" ".join([*words[:at], ""]))
        answers = {"text": [answer] if has else [], "answer_start": [start] if has else []}
        rows.append({"id": f"q{i}", "question": kind, "context": context, "answers": answers})
    return rows


def params_of(job, tmp_path, count=60, epochs=1, unanswerable=False, task=None, **sections):
    data = {
        "train": str(write_rows(tmp_path / "tr.jsonl", asked(count, 0, unanswerable))),
        "evaluation": str(write_rows(tmp_path / "ev.jsonl", asked(20, 1, unanswerable))),
        **sections.pop("data", {}),
    }
    training = {**job().training.model_dump(mode="json"), "peak_learning_rate": 6e-3, "phases": [
        {"sequence_length": LENGTH, "batch_size": 8, "epochs": epochs}]}  # fmt: skip
    kind = {"kind": "question_answering", "stride": STRIDE, "max_answer_tokens": 8, "unanswerable": unanswerable}
    return job(task={**kind, **(task or {})}, data=data, training=training, **sections)


def opened(params):
    run = RunFolder(params.run.folder)
    run.create()
    return open_labelled(params, run, make_vocabulary(params, run, [], ""))


def test_the_loss_is_that_of_transformers(job, tmp_path):
    """Of each window without padding; padding changes nothing, so neither do microbatches."""
    params = params_of(job, tmp_path, unanswerable=True, model={"hidden_dropout": 0.0, "attention_dropout": 0.0})
    source = opened(params)
    assert len(source.train.features) > len(source.train.examples)
    begun = build_trainable(source.params, source.vocabulary, choose_precision(params))
    plain = BertForQuestionAnswering(begun.config)
    with torch.no_grad():
        ours = {name: p for segment in begun.store.segments for name, p in segment.parameters.items()}
        for name, parameter in plain.named_parameters():
            parameter.copy_(ours[name])
    chosen = source.train.features[:12]
    assert len({feature.label for feature in chosen}) > 3
    expected = []
    for feature in chosen:
        start, stop = feature.label
        inputs = {"input_ids": torch.from_numpy(feature.rows[0]), "token_type_ids": torch.from_numpy(feature.types[0])}
        inputs |= {"start_positions": torch.tensor(start), "end_positions": torch.tensor(stop)}
        expected.append(plain(**{name: value[None] for name, value in inputs.items()}).loss.item())
    for microbatch_tokens in (60, 1000):
        batch = make_batch(chosen, FeatureRule(LENGTH, 0, microbatch_tokens, 32))
        assert (len(batch.microbatches) > 1) == (microbatch_tokens == 60)
        found = [
            question_answering.training_loss(begun.model, microbatch, torch.device("cpu"), batch)
            for microbatch in batch.microbatches
        ]
        assert sum(loss.item() for loss, _ in found) == pytest.approx(np.mean(expected), rel=1e-6)
        sums = [sum(summed.item() for _, summed in found)]
        assert question_answering.losses(sums, batch)["label_loss"] == pytest.approx(np.mean(expected), rel=1e-6)
    whole = [feature for feature in chosen if feature.length == LENGTH]
    (microbatch,) = make_batch(whole, FeatureRule(LENGTH, 0, 1000, 32)).microbatches
    labels = torch.from_numpy(microbatch.labels)
    theirs = plain(
        input_ids=torch.from_numpy(microbatch.input_ids), token_type_ids=torch.from_numpy(microbatch.token_type_ids),
        start_positions=labels[:, 0], end_positions=labels[:, 1],
    ).loss  # fmt: skip
    batch = make_batch(whole, FeatureRule(LENGTH, 0, 1000, 32))
    loss, _ = question_answering.training_loss(begun.model, microbatch, torch.device("cpu"), batch)
    assert len(whole) > 2 and loss.item() == pytest.approx(theirs.item(), rel=1e-6)


def answer_of_transformers(model, tokenizer, question, context, unanswerable=False):
    """Its tokenizer's windows and offsets, its model, and every span tried: the best p(start) p(stop), where words have
    spaces that of the 12 best of each window, grown to words."""
    grow = not is_unspaced(context)
    windows = tokenizer(
        question, context, truncation="only_second", max_length=LENGTH, stride=STRIDE, return_overflowing_tokens=True,
        return_offsets_mapping=True, return_tensors=None,
    )  # fmt: skip
    totals, none = Counter(), 1.0
    where = {}
    for w, ids in enumerate(windows["input_ids"]):
        with torch.no_grad():
            found = model(torch.tensor([ids]), token_type_ids=torch.tensor([windows["token_type_ids"][w]]))
        places = [0] + [i for i, kind in enumerate(windows.sequence_ids(w)) if kind == 1]
        start, stop = (row[0][places].softmax(-1) for row in (found.start_logits, found.end_logits))
        none = min(none, float(start[0] * stop[0]))
        spans = [
            (float(start[a] * stop[b]), places[a], places[b])
            for a in range(1, len(places))
            for b in range(a, min(a + 8, len(places)))
        ]
        offsets, words = windows["offset_mapping"][w], windows.word_ids(w)
        for score, a, b in sorted(spans, reverse=True)[: 12 if grow else 1]:
            while grow and words[a - 1] == words[a]:
                a -= 1
            while grow and words[b + 1] == words[b]:
                b += 1
            span = offsets[a][0], offsets[b][1]
            text = context[slice(*span)].lower()
            totals[text] += score
            where.setdefault(text, span)
    (text, score) = totals.most_common(1)[0]
    return ("", 0, 0, none) if unanswerable and none > score else (context[slice(*where[text])], *where[text], score)


@pytest.mark.parametrize("unanswerable", [False, True])
def test_a_run_answers_as_transformers_does(job, tmp_path, unanswerable):
    params = params_of(job, tmp_path, 100, 2, unanswerable)
    plan_stage(params)
    run_stages(params)
    run = RunFolder(params.run.folder)
    best = max(read_records(run.evaluations), key=lambda record: record["eval/f1"])
    assert best["eval/f1"] > 0.3 and best["n_examples"] == 20 < best["n_windows"]
    assert ("eval/f1_unanswerable" in best) == unanswerable
    first = json.loads(run.predictions.read_text("utf-8").splitlines()[0])
    assert first["truth"] == asked(1, 1, unanswerable)[0]["answers"]["text"] and first["id"] == "q0"

    rows = [{name: row[name] for name in ("question", "context")} for row in asked(25, 2, unanswerable)]
    rows += [{"question": "良い?", "context": "ｶﾞﾗｽ　が\u3099うれしい great　店"}, {"question": "良い?", "context": ""}]
    output = tmp_path / "out.jsonl"
    predict_stage(params, [str(write_rows(tmp_path / "in.jsonl", rows))], output)
    found = [json.loads(line)["prediction"] for line in output.read_text("utf-8").splitlines()]
    model, tokenizer = AutoModelForQuestionAnswering.from_pretrained(run.best), AutoTokenizer.from_pretrained(run.best)
    for row, mine in zip(rows[:-1], found, strict=False):
        text, start, stop, score = answer_of_transformers(
            model, tokenizer, row["question"], row["context"], unanswerable
        )
        assert mine["answer"] == row["context"][mine["start"] : mine["stop"]]
        assert mine["score"] == pytest.approx(score, rel=1e-4)
        assert (mine["answer"], mine["start"], mine["stop"]) == (text, start, stop)
    assert found[-1]["answer"] == ""
    assert any(mine["answer"] == "" for mine in found[:-1]) <= unanswerable


def test_streaming_from_disk_changes_no_number(job, tmp_path):
    losses = []
    for placement in ("device", "disk"):
        params = params_of(job, tmp_path, 24, device={"placement": placement}, data={"evaluation": [], "held_out": 0.2},
                           run={"folder": str(tmp_path / placement), "seed": 3})  # fmt: skip
        run_stages(params)
        run = RunFolder(params.run.folder)
        losses.append([record["loss"] for record in read_records(run.metrics) if "loss" in record])
        losses[-1] += [record["eval/loss"] for record in read_records(run.evaluations)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6) and len(losses[0]) > 3


def example(context, answer=None, question="good?"):
    answers = None if answer is None else ((context.index(answer), answer),)
    return question_answering.Example("f:1", None, question, context, answers)


def test_answers_lie_in_the_raw_text_where_the_vocabulary_normalises(job, tmp_path):
    """Logits as right as can be give exactly the answers back: half-width, full-width, combining and squared characters."""
    sentences = ["㍿ガスは東京へ行った。", "ｶﾞｽの株式会社は大阪へ来た。", "東京と大阪のガス会社が行った。"] * 9
    vocabulary, _ = train_vocabulary(sentences, tmp_path / "v", kind="character", size=60)
    texts = [
        ("東京へ行った。" * 3 + "ｶﾞｽは㍿東京　大阪", "ｶﾞｽ"),
        ("か\u3099す　ＡＢ東京", "か\u3099す"),
        ("㍿東京", "㍿"),
    ]
    examples = [example(context, answer, "東京?") for context, answer in texts]
    params, task, notes = params_of(job, tmp_path), question_answering, Counter()
    features = task.features(examples, params, vocabulary, LENGTH, notes)
    assert len(features) > len(examples) and not any(notes.values())
    logits = [np.zeros((feature.length, 2)) for feature in features]
    for row, feature in zip(logits, features, strict=True):
        row[feature.label, (0, 1)] = 20.0
    guesses = task.predictions(logits, features, examples, params)
    for (context, answer), guess in zip(texts, guesses, strict=True):
        assert guess["answer"] == answer == context[guess["start"] : guess["stop"]]
    assert task.figures(logits, guesses, features, examples, params)["eval/exact"] == 1.0


def test_exact_match_and_f1_are_those_of_the_script_of_squad():
    for answer, truths, exact, f1 in (
        ("the Norman  people.", ["Normans", "Norman people"], 1, 1),  # articles, punctuation and white space go
        ("in the 10th and 11th centuries", ["10th and 11th centuries"], 0, 2 * 4 / (5 + 4)),
        ("France", ["Normandy"], 0, 0),
        ("a a b", ["b b"], 0, 2 * 1 / (1 + 2)),
        ("", [], 1, 1),
        ("x", [], 0, 0),
        ("", ["x"], 0, 0),
        ("the", ["The"], 1, 1),  # nothing is left, as if there was no answer
    ):
        assert exact_and_f1(answer, truths, unspaced=False) == (exact, pytest.approx(f1))
    assert exact_and_f1("「東京都」", ["東京都"], unspaced=True) == (1, 1)
    assert exact_and_f1("ＡＢ 株", ["ab株"], unspaced=True) == (1, 1)
    assert exact_and_f1("東京都千代田区", ["東京都"], unspaced=True) == (0, pytest.approx(2 * 3 / (7 + 3)))


def test_figures_are_means_over_questions(job, tmp_path):
    params = params_of(job, tmp_path, unanswerable=True)
    none = question_answering.Example("f:3", None, "who?", "a b", ())
    examples = [example("great film", "film", "what?"), example("本は楽しい。", "楽しい", "本は何?"), none]
    guesses = [{"answer": "great film"}, {"answer": "楽しい。"}, {"answer": "b"}]
    logits = [np.log(np.array([[0.5, 0.25], [0.25, 0.5], [0.25, 0.25]]))] * 3
    features = [question_answering.Feature((), (), i, label) for i, label in enumerate([(0, 1), (0, 1), (-100, -100)])]
    figures = question_answering.figures(logits, guesses, features, examples, params)
    assert figures["eval/exact"] == pytest.approx(1 / 3) and figures["eval/f1"] == pytest.approx((2 / 3 + 1 + 0) / 3)
    assert figures["eval/exact_answerable"] == 0.5 and figures["eval/f1_unanswerable"] == 0
    assert figures["eval/loss"] == pytest.approx(np.log(2)) and figures["n_examples"] == figures["n_windows"] == 3


def test_answers_that_tokens_cannot_say_are_counted(job, tmp_path):
    params = params_of(job, tmp_path, task={"max_answer_tokens": 2})
    vocabulary, task, notes = opened(params).vocabulary, question_answering, Counter()
    examples = [
        example("本 great 店", "eat"),
        example("本 \u200b店", "\u200b"),
        example("本店" * 20, "本店本店" * 6),
        example("本", "本", "良い" * 20),
        example("本"),
    ]
    features = task.features(examples, params, vocabulary, LENGTH, notes)
    assert notes == {task.UNMAPPABLE: 1, task.NO_TOKEN: 1, task.TOO_LONG: 1, task.NO_WINDOW: 1, task.CUT: 1}
    assert [f.label for f in features if f.example in (1, 4)] == [(-100, -100)] * 2
    assert {f.label for f in features if f.example == 2} == {(0, 0)}


def test_wrong_rows_and_settings_are_told(job, tmp_path):
    def told(row, **sections) -> str:
        data = {"train": str(write_rows(tmp_path / "wrong.jsonl", [row]))}
        with pytest.raises(UserError) as error:
            opened(params_of(job, tmp_path, data=data, **sections))
        return str(error.value)

    row = {"question": "q", "context": "a great film"}
    assert "wrong.jsonl:1: there is no field 'answers'" in told(row)
    assert "set task.unanswerable to true" in told({**row, "answers": {"text": [], "answer_start": []}})
    assert "answer_start = 3" in told({**row, "answers": [{"text": "great", "answer_start": 3}]})
    assert "answers are {text: [...], answer_start: [...]}" in told({**row, "answers": [{"text": "great"}]})
    assert "answers are {text" in told({**row, "answers": {"text": "great", "answer_start": [2]}})
    good = {**row, "answers": [{"text": "great", "answer_start": 2}]}
    assert "use a smaller task.stride or a longer sequence_length" in told(good, task={"stride": 128})


def test_files_of_squad_are_read(job, tmp_path):
    questions = [{"id": 7, "question": "良い?", "answers": [{"text": "great", "answer_start": 2}], "is_impossible": False},
                 {"id": "b", "question": "awful?", "answers": [], "is_impossible": True}]  # fmt: skip
    tree = {"data": [{"title": "t", "paragraphs": [{"context": "a great film", "qas": questions}]}]}
    (tmp_path / "squad.json").write_text(json.dumps(tree), "utf-8")
    params = params_of(job, tmp_path, unanswerable=True, data={"train": str(tmp_path / "squad.json")})
    source = opened(params)
    assert [(each.id, each.answers) for each in source.train.examples] == [("7", ((2, "great"),)), ("b", ())]
    assert [feature.label for feature in source.train.features] == [(6, 6), (0, 0)]


def test_answers_that_tokens_cannot_give_back_are_listed(tmp_path, pretrained):
    """One token for ﾞ and the kana before it: an answer that is the kana alone is said to have more in its token."""
    example = question_answering.Example("f:1", None, "?", "本とｶﾞラ", ((2, "ｶ"), (0, "本")))
    vocabulary = load_vocabulary(pretrained, tmp_path / "tokenizer", unicode="nfkc")
    [(text, found)] = unmappable_spans([example], vocabulary)
    assert text == "ｶ" and found.source == "f:1" and found.span == (2, 3) and "ﾞ" in found.why
    assert gold_spans(object()) == ("", [])
