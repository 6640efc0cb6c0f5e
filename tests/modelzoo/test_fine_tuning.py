"""run.py on every form of fine-tuning data: trained, evaluated by the lines its users know, predicted, refused by name."""

import json
import re

import numpy as np
import pytest
import torch
from fine_tuning_files import (
    LENGTH,
    NER_LABELS,
    WORDS,
    ner_rows,
    params_file,
    qa_windows,
    summaries,
    write_bertsum_csv,
    write_bertsum_tfrecords,
    write_mnli,
    write_ner_csv,
    write_ner_tfrecords,
    write_qa_csv,
    write_qa_tfrecords,
    write_squad,
    write_sst2,
    write_sst2_tfds,
)
from run_by_command import checkpoints, do, metrics, numbers, saved_dicts
from torch.nn import functional as F
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForTokenClassification,
)

from headrace.labelled.features import Feature
from headrace.modelzoo.fine_tuning.feature_set import Item
from headrace.modelzoo.fine_tuning.figures import figures_of, taken_words
from headrace.modelzoo.params import translate
from headrace.modelzoo.params.show import show
from headrace.params import load_params


def run(path, folder, mode="train_and_eval", *more):
    do("--mode", mode, "--params", path, "--model_dir", folder, *more)


def error(capsys, *words):
    """What is said on standard error of a command that is refused."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        run(*words)
    assert ended.value.code == 2
    return capsys.readouterr().err


def predictions(folder):
    return [json.loads(line) for line in (folder / "predict" / "predictions.jsonl").read_text("utf-8").splitlines()]


def sst2(tmp_path, **more):
    write_sst2(tmp_path / "SST-2")
    model = "    task_dropout: 0.0\n    num_labels: 2\n    problem_type: single_label_classification\n"
    return params_file(tmp_path, "SST2DataProcessor", "SST-2", "SST-2", model, tf=False, **more)


def test_sst2_from_a_pretrained_checkpoint_to_predictions(tmp_path, printed):
    path = sst2(tmp_path, steps=20)
    config = BertConfig(
        vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=32, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(3)
    pretrained = BertForPreTraining(config)
    pretrained.save_pretrained(tmp_path / "pretrained")
    out = tmp_path / "run"
    run(path, out, "train_and_eval", "--checkpoint_path", tmp_path / "pretrained", "--is_pretrained_checkpoint")
    said = printed()
    assert "begin anew" in said and "Evaluation [2/2]" in said and "samples/second" in said
    figures = saved_dicts(said)[20]
    assert list(figures) == ["eval/accuracy", "eval/f1_score", "loss"]
    assert figures["eval/accuracy"] == figures["eval/f1_score"]  # micro: the accuracy again, as in the tool
    assert checkpoints(out) == [20]

    run(path, out, "eval")
    again = saved_dicts(printed())[20]
    assert again == figures
    run(path, out, "predict")
    rows = predictions(out)
    guesses = [
        row["prediction"]["label"] == row["truth"] for row in rows[:16]
    ]  # a last batch that is not full is dropped
    assert len(rows) == 20 and np.mean(guesses) == pytest.approx(figures["eval/accuracy"])
    model = AutoModelForSequenceClassification.from_pretrained(out / "model").eval()
    ids = [WORDS.index(word) for word in ["[CLS]", *rows[0]["text"].split(), "[SEP]"]]
    with torch.no_grad():
        shares = model(torch.tensor([ids])).logits.softmax(-1)[0]
    assert shares.tolist() == pytest.approx(list(rows[0]["prediction"]["scores"].values()), abs=1e-5)
    assert (out / "report.html").is_file() and not any((out / "checkpoints").glob("*.mdl"))


def test_resumed_in_the_middle_it_ends_the_same(tmp_path, printed):
    path = sst2(tmp_path, steps=6)
    run(path, tmp_path / "whole", "train")
    run(path, tmp_path / "parts", "train", "--steps", "3")
    run(path, tmp_path / "parts", "train")
    assert numbers(tmp_path / "parts") == numbers(tmp_path / "whole")


def test_convert_prints_params_that_headrace_run_reads(tmp_path):
    (found,) = translate(sst2(tmp_path))
    ours = tmp_path / "ours.yaml"
    ours.write_text(show(found), "utf-8")
    params = load_params(ours)
    assert params == found.params and params.data is not None
    assert params.task.kind == "classification" and params.data.labels == ["0", "1"]
    assert params.data.train == [str(tmp_path / "SST-2" / "train.tsv")]
    assert params.data.evaluation == [str(tmp_path / "SST-2" / "dev.tsv")]
    assert (params.data.fields.text, params.data.fields.label) == ("sentence", "label")


def test_records_of_tensorflow_datasets_train_as_the_tsv_does(tmp_path, printed):
    write_sst2_tfds(tmp_path / "tfds")
    write_sst2(tmp_path / "SST-2")
    model = "    cls_dropout_rate: 0.0\n    num_cls_classes: 2\n"
    for k, data in enumerate(("tfds", "SST-2")):
        path = params_file(tmp_path, "Sst2DataProcessor", data, data, model, tf=True)
        run(path, tmp_path / f"run-{k}")
    assert numbers(tmp_path / "run-0") == numbers(tmp_path / "run-1")
    figures = saved_dicts(printed())[4]
    assert list(figures) == ["eval/accuracy_cls", "eval/f1_score", "eval/mcc", "loss"]


def test_mnli_judges_both_validation_sets(tmp_path, printed):
    write_mnli(tmp_path / "MNLI")
    model = "    task_dropout: 0.0\n    num_labels: 3\n    problem_type: single_label_classification\n    is_mnli_dataset: True\n"
    path = params_file(tmp_path, "MNLIDataProcessor", "MNLI", "MNLI", model, tf=False)
    run(path, tmp_path / "run")
    figures = saved_dicts(printed())[4]
    assert list(figures) == ["eval/accuracy", "eval/accuracy_matched", "eval/accuracy_mismatched", "loss"]
    matched, mismatched = figures["eval/accuracy_matched"] * 10, figures["eval/accuracy_mismatched"] * 6
    assert figures["eval/accuracy"] * 16 == pytest.approx(matched + mismatched)
    run(path, tmp_path / "run", "predict")
    assert predictions(tmp_path / "run")[0]["pair"] == 'the "plot'


@pytest.mark.parametrize("tf", [False, True], ids=["csv", "tfrecords"])
def test_ner(tmp_path, printed, tf):
    write = write_ner_tfrecords if tf else write_ner_csv
    for name, count in (("train", 24), ("dev", 16)):
        write(tmp_path / name, count)
    processor = "NerDataProcessor" if tf else "BertTokenClassifierDataProcessor"
    model = "    encoder_output_dropout_rate: 0.0\n    num_classes: 7\n"
    more = f"    label_vocab_file: {tmp_path}/train/label2id.json\n"
    path = params_file(tmp_path, processor, "train", "dev", model, tf=tf, more=more)
    run(path, tmp_path / "run")
    figures = saved_dicts(printed())[4]
    assert list(figures) == ["eval/token_level_macro_f1" if tf else "eval/f1_score", "loss"]
    model = BertForTokenClassification.from_pretrained(tmp_path / "run" / "model")
    assert [model.config.id2label[i] for i in range(7)] == NER_LABELS  # pyright: ignore[reportOptionalSubscript]
    total = 0.0  # the sum over all tokens, over the sentences
    for tokens, labels in ner_rows(16):
        with torch.no_grad():
            logits = model(torch.tensor([[WORDS.index(token) for token in tokens]])).logits[0]
        targets = torch.tensor([NER_LABELS.index(label) for label in labels])
        total += F.cross_entropy(logits, targets, reduction="sum").item()
    assert figures["loss"] == pytest.approx(total / 16, rel=1e-4)
    run(path, tmp_path / "run", "predict")
    rows = predictions(tmp_path / "run")
    pairs = [pair for row in rows for pair in zip(row["truth"], row["prediction"]["labels"], strict=True)]
    both, guessed, true = (sum(f(t == "B", p == "B") for t, p in pairs) for f in (min, lambda t, p: p, lambda t, p: t))
    of_b = 2 * both / (guessed + true) if guessed + true else 0.0
    assert next(iter(figures.values())) == pytest.approx(of_b / 2)  # the mean of B's and I's; there is no I


def test_squad_csv(tmp_path, printed):
    for name, count in (("train", 24), ("dev", 16)):
        write_qa_csv(tmp_path / name, count)
    path = params_file(tmp_path, "BertQADataProcessor", "train", "dev", "", tf=False)
    run(path, tmp_path / "run")
    figures = saved_dicts(printed())[4]
    assert list(figures) == ["loss"]  # the tool has no other
    model = BertForQuestionAnswering.from_pretrained(tmp_path / "run" / "model")
    total = 0.0  # start and end add up, as in the tool
    for ids, types, start in qa_windows(16):
        with torch.no_grad():
            found = model(torch.tensor([ids]), token_type_ids=torch.tensor([types]))
        for logits, at in ((found.start_logits, start), (found.end_logits, start + 1)):
            total += F.cross_entropy(logits, torch.tensor([at])).item()
    assert figures["loss"] == pytest.approx(total / 16, rel=1e-4)
    run(path, tmp_path / "run", "predict")
    rows = predictions(tmp_path / "run")
    assert sorted(row["unique_id"] for row in rows) == [10**9 + k for k in range(16)]
    assert all(0 <= row["prediction"]["start_position"] <= row["prediction"]["end_position"] for row in rows)


def test_squad_records_are_predicted_without_answers(tmp_path, capsys):
    write_qa_tfrecords(tmp_path / "train.tf_record", 24)
    write_qa_tfrecords(tmp_path / "predict.tf_record", 5, answers=False)
    path = params_file(tmp_path, "QuestionAnsweringDataProcessor", "train.tf_record", "predict.tf_record", "", tf=True)
    run(path, tmp_path / "run", "train")
    run(path, tmp_path / "run", "predict")
    assert [row["unique_id"] for row in predictions(tmp_path / "run")] == [10**9 + k for k in range(5)]
    words = f"train_input.data_file={tmp_path}/predict.tf_record"
    assert "made to predict, not to train" in error(capsys, path, tmp_path / "other", "train", words)


def test_squad_json_needs_no_preparation(tmp_path, printed):
    write_squad(tmp_path / "squad" / "train-v1.1.json", 24)
    write_squad(tmp_path / "squad" / "dev-v1.1.json", 16)
    path = params_file(tmp_path, "BertQADataProcessor", "squad", "squad", "", tf=False)
    run(path, tmp_path / "run", "train_and_eval", "task.stride=2")
    figures = saved_dicts(printed())[4]
    assert list(figures) == ["eval/exact", "eval/f1", "loss"]
    run(path, tmp_path / "run", "predict", "task.stride=2")
    rows = predictions(tmp_path / "run")
    right = [row["prediction"]["answer"] in row["truth"] for row in rows]
    assert len(rows) == 16 and figures["eval/exact"] == pytest.approx(np.mean(right))


@pytest.mark.parametrize("tf", [False, True], ids=["csv", "tfrecords"])
def test_bertsum(tmp_path, printed, tf):
    write = write_bertsum_tfrecords if tf else write_bertsum_csv
    for name, count in (("train", 24), ("dev", 16)):
        write(tmp_path / name, count)
    processor = "BertSumTfRecordsProcessor" if tf else "BertSumCSVDataProcessor"
    more = "    max_cls_tokens: 5\n"
    path = params_file(tmp_path, processor, "train", "dev", "    loss_weight: 0.5\n", tf=tf, more=more)
    run(path, tmp_path / "run")
    said = printed()
    figures = saved_dicts(said)[4]
    joint = "-" if tf else "/"
    assert f"eval/rouge1{joint}f1_score" in figures and f"eval/rouge2{joint}precision" in figures
    assert "the first sentence of each text counts neither" in said
    # New weights know nothing: ln 2 a sentence but the first, two a text, times loss_weight.
    assert metrics(tmp_path / "run")[0]["loss"] == pytest.approx(2 * np.log(2) * 0.5, rel=0.1)
    model = BertForTokenClassification.from_pretrained(tmp_path / "run" / "model")
    assert model.config.num_labels == (1 if tf else 2)
    run(path, tmp_path / "run", "predict")
    rows = predictions(tmp_path / "run")
    assert len(rows) == 16
    for row in rows:
        shares = row["prediction"]["scores"]  # of the second sentence and the third
        assert row["prediction"]["sentences"] == [k + 1 for k, share in enumerate(shares) if share > 0.5]


def test_the_loss_of_an_evaluation_is_that_of_training(tmp_path, printed):
    """BERTSUM's of the checkpoint before the first step, worked out from the model's own outputs."""
    write_bertsum_csv(tmp_path / "train", 16)
    model = "    loss_weight: 0.0539\n"
    path = params_file(
        tmp_path, "BertSumCSVDataProcessor", "train", "train", model, tf=False, more="    max_cls_tokens: 5\n", steps=1
    )
    run(path, tmp_path / "run")
    loss = saved_dicts(printed())[1]["loss"]
    trained = BertForTokenClassification.from_pretrained(tmp_path / "run" / "model").eval()
    total = 0.0
    rows = summaries(16)
    for ids, labels, types, starts in rows:
        with torch.no_grad():
            logits = trained(torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0, starts[1:]]
        total += F.cross_entropy(logits, torch.tensor(labels[1:]), reduction="sum").item()
    assert loss == pytest.approx(total / 16 * 0.0539, rel=1e-5)


def test_refusals_name_what_is_wrong(tmp_path, capsys):
    path = sst2(tmp_path)

    def refused(match, *words):
        assert re.search(match, error(capsys, path, tmp_path / "none", "train", *words))
        assert not (tmp_path / "none").exists()

    refused("DummyDataProcessor.*cannot be read here", "train_input.data_processor=DummyDataProcessor")
    refused("holds neither .*train.tsv", f"train_input.data_dir={tmp_path}/configs")
    refused("no such file", "train_input.vocab_file=gone.txt")
    refused("problem_type: single_label_classification", "model.problem_type=regression")
    (tmp_path / "SST-2" / "train.tsv").write_text("sentence\tlabel\ngood\tmaybe\n", "utf-8")
    refused("'maybe' is none of those")
    (tmp_path / "SST-2" / "train.tsv").write_text("text\tlabel\ngood\t1\n", "utf-8")
    refused("no field 'sentence'")


def test_records_that_do_not_fit_are_refused(tmp_path, capsys):
    write_ner_csv(tmp_path / "train", 8)
    more = f"    label_vocab_file: {tmp_path}/train/label2id.json\n"
    model = "    encoder_output_dropout_rate: 0.0\n    num_classes: 7\n"
    path = params_file(tmp_path, "BertTokenClassifierDataProcessor", "train", None, model, tf=False, more=more)

    def refused(match, *words):
        assert re.search(match, error(capsys, path, tmp_path / "none", "train", *words))

    refused("max_sequence_length is 8", "train_input.max_sequence_length=8")
    refused("model.num_classes = 5, and .*has 7 labels", "model.num_classes=5")
    refused("include_padding_in_loss = True: padding never counts", "model.include_padding_in_loss=True")
    meta = tmp_path / "train" / "meta.dat"
    meta.write_text("part-1.csv 9\npart-2.csv 4\n", "utf-8")
    refused("has 4 records, and meta.dat says 9")
    meta.unlink()
    (tmp_path / "train" / "part-1.csv").write_text("words,labels\na,O\n", "utf-8")
    refused("lacks the columns tokens; it has labels, words")
    (tmp_path / "train" / "part-1.csv").write_text('tokens,labels\n[CLS] a,"[CLS] Q"\n', "utf-8")
    refused("label 'Q' is none of")
    write_qa_csv(tmp_path / "qa", 4)
    path = params_file(tmp_path, "BertQADataProcessor", "qa", None, "", tf=False)
    refused(f"max_sequence_length {LENGTH}, and the params say 12", "train_input.max_sequence_length=12")


def test_checked_only(tmp_path, printed):
    run(sst2(tmp_path), tmp_path / "run", "train", "--validate_only")
    said = printed()
    assert "train_input: 40 examples in 1 files: GLUE .tsv" in said and "nothing was trained" in said
    assert not (tmp_path / "run").exists()


def test_figures_are_the_tools():
    """Against scikit-learn, and words put together by hand."""
    from sklearn.metrics import f1_score, matthews_corrcoef

    draw = np.random.default_rng(0)
    items = [Item(Feature((np.zeros(1),), (np.zeros(1),), k, int(draw.integers(2))), {}) for k in range(50)]
    outputs = [draw.normal(size=2) for _ in items]
    truth, guess = [item.feature.label for item in items], [int(logits.argmax()) for logits in outputs]
    of = figures_of("classifier", outputs, items, tensorflow=True, labels=None, vocab_file=None)
    assert of["eval/f1_score"] == pytest.approx(f1_score(truth, guess))
    assert of["eval/mcc"] == pytest.approx(matthews_corrcoef(truth, guess))

    ids, _, types, starts = summaries(1)[0]
    feature = Feature((np.array(ids),), (np.array(types),), 0, None, np.array(starts), np.array([0, 1, 1]))
    item = Item(feature, {}, starts=np.array(starts))
    words = [[WORDS[i] for i in ids[a:b] if i > 4] for a, b in zip(starts, [*starts[1:], None], strict=True)]
    assert taken_words(item, np.array([0, 1, 1]), WORDS) == words[1] + words[2]
    assert taken_words(item, np.array([1, 0, 0]), WORDS) == words[0]


def test_rouge_counts_over_all_texts(tmp_path):
    vocabulary = tmp_path / "vocab.txt"
    vocabulary.write_text("\n".join(WORDS) + "\n", "utf-8")
    film, plot, the = (WORDS.index(word) for word in ("film", "plot", "the"))
    row, starts = np.array([2, film, plot, 3, 2, film, the, 3]), np.array([0, 4])
    item = Item(Feature((row,), (row * 0,), 0, None, starts, np.array([1, 0])), {}, starts=starts)
    second, both = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[0.0, 1.0], [0.0, 1.0]])
    job, more = "extractive_summarization", {"tensorflow": True, "labels": None, "vocab_file": str(vocabulary)}
    of = figures_of(job, [second, both], [item, item], **more)
    # Taken: "film the", and "film plot film the"; to be taken: "film plot" twice.
    assert of["eval/rouge1-precision"] == pytest.approx((1 + 2) / (2 + 4))
    assert of["eval/rouge1-recall"] == pytest.approx(3 / 4)
    assert of["eval/rouge2-recall"] == pytest.approx(1 / 2) and of["eval/rouge2-precision"] == pytest.approx(1 / 4)
