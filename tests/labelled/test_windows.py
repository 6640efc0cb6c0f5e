import numpy as np
import pytest
from transformers.pipelines.document_question_answering import select_starts_ends

from headrace.errors import UserError
from headrace.labelled.spans import Encoded, encode_with_offsets, span_of_tokens, tokens_of_span
from headrace.labelled.windows import best_answers, max_question_tokens, targets_of, windows_of
from headrace.text.vocabulary import load_vocabulary

WORDS = ["glass", "##works", "the", "old", "town", "has", "a", ",", "river", "##side", "A", "."]
CONTEXT = "The old town has a glassworks, a riverside. a Glassworks the riverside has, a town  the old glass."


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n", "utf-8")
    return load_vocabulary(folder / "vocab.txt", folder / "tokenizer", lowercase=True)


@pytest.fixture
def encoded(vocabulary):
    return encode_with_offsets(vocabulary, ["the old town?", CONTEXT])


@pytest.mark.parametrize("max_length, overlap", [(384, 128), (12, 2), (9, 1), (9, 0), (13, 5), (7, 0)])
def test_windows_are_those_of_transformers(vocabulary, encoded, max_length, overlap):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(vocabulary.folder)
    question, context = encoded
    theirs = tokenizer(
        " ".join(["the", "old", "town", "?"][: max_question_tokens(max_length)]),
        CONTEXT,
        truncation="only_second",
        max_length=max_length,
        stride=overlap,
        return_overflowing_tokens=True,
    )
    windows = windows_of(question, context, vocabulary, max_length, overlap)
    assert [window.ids.tolist() for window in windows] == theirs["input_ids"]
    assert [window.types.tolist() for window in windows] == theirs["token_type_ids"]
    assert {i for w in windows for i in range(w.first, w.first + w.num_tokens)} == set(range(len(context)))
    for window in windows:
        held = window.ids[window.offset : window.offset + window.num_tokens]
        assert held.tolist() == context.ids[window.first : window.first + window.num_tokens].tolist()


def test_an_overlap_without_end_is_refused(vocabulary, encoded):
    with pytest.raises(UserError, match="windows of 12 tokens with an overlap of 5 leave no way to go on"):
        windows_of(*encoded, vocabulary, 12, 5)


def test_an_empty_context_is_one_window(vocabulary, encoded):
    empty = Encoded(*np.zeros((3, 0), np.int64))
    (window,) = windows_of(encoded[0], empty, vocabulary)
    assert window.ids.tolist() == [2, *encoded[0].ids, 3, 3] and window.num_tokens == 0
    logits = [np.zeros(len(window.ids), np.float32)]
    assert best_answers([window], logits, logits, "", empty) == []
    (none,) = best_answers([window], logits, logits, "", empty, allow_none=True)
    assert (none.text, none.score) == ("", 1.0)


def test_targets(vocabulary, encoded):
    question, context = encoded
    at = CONTEXT.index("riverside")
    tokens = tokens_of_span(context, at, at + len("riverside"))
    windows = windows_of(question, context, vocabulary, 14, 3)
    holding = [window for window in windows if targets_of(window, tokens) != (0, 0)]
    assert 0 < len(holding) < len(windows)
    for window in holding:
        start, stop = targets_of(window, tokens)
        assert [vocabulary.token_text(i) for i in window.ids[start : stop + 1]] == ["river", "##side"]
    assert targets_of(windows[0], None) == (0, 0)


def by_transformers(windows, starts, stops, raw, context, max_tokens, allow_none, align, top_k):
    """The pipeline's choice of transformers 5.2: its span selection, which today's document question answering shares,
    and the lines around it."""
    answers, none_score = [], 1000000
    for window, start, stop in zip(windows, starts, stops, strict=True):
        allowed = np.zeros(len(window.ids), int)
        allowed[window.offset : window.offset + window.num_tokens] = 1
        allowed[0] = 1
        firsts, lasts, scores, none_score = select_starts_ends(
            start[None], stop[None], 1 - allowed, np.ones((1, len(allowed)), int), none_score,
            2 * top_k + 10 if align else top_k, allow_none, max_tokens,
        )  # fmt: skip
        for first, last, score in zip(firsts, lasts, scores, strict=True):
            a, b = first - window.offset, last - window.offset
            if score == 0:
                continue
            if align:
                words = context.words[window.first : window.first + window.num_tokens]
                a = min(np.flatnonzero(words == words[a]))
                b = max(np.flatnonzero(words == words[b]))
            at, end = span_of_tokens(raw, context, window.first + a, window.first + b + 1)
            same = [answer for answer in answers if answer["answer"].lower() == raw[at:end].lower()]
            if same:
                same[0]["score"] += score
            else:
                answers.append({"score": score, "start": at, "end": end, "answer": raw[at:end]})
    if allow_none:
        answers.append({"score": none_score, "start": 0, "end": 0, "answer": ""})
    return sorted(answers, key=lambda answer: -answer["score"])[:top_k]


@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("top_k", [1, 4])
def test_the_best_answer_is_that_of_transformers(vocabulary, encoded, align, top_k):
    question, context = encoded
    draw = np.random.default_rng(1)
    chosen = set()
    for _ in range(100):
        windows = windows_of(question, context, vocabulary, int(draw.integers(12, 40)), int(draw.integers(0, 5)))
        starts = [draw.normal(0, 3, len(window.ids)).astype(np.float32) for window in windows]
        stops = [draw.normal(0, 3, len(window.ids)).astype(np.float32) for window in windows]
        arguments = (windows, starts, stops, CONTEXT, context, int(draw.integers(1, 16)), bool(draw.integers(2)), align)
        ours, theirs = best_answers(*arguments, top_k=top_k), by_transformers(*arguments, top_k)
        assert len(ours) == len(theirs)
        for answer, expected in zip(ours, theirs, strict=True):
            assert (answer.text, answer.start, answer.stop) == tuple(expected[k] for k in ("answer", "start", "end"))
            assert answer.score == pytest.approx(expected["score"], rel=1e-5)
            assert CONTEXT[answer.start : answer.stop] == answer.text
        chosen.add(ours[0].text)
    assert len(chosen) > 10 and "" in chosen


def test_words_are_made_whole(vocabulary, encoded):
    question, context = encoded
    (window,) = windows_of(question, context, vocabulary)
    at = CONTEXT.index("works")
    position = window.offset + tokens_of_span(context, at, at + 5)[0]
    logits = np.full(len(window.ids), -20, np.float32)
    logits[position] = 20
    (part,) = best_answers([window], [logits], [logits], CONTEXT, context)
    (whole,) = best_answers([window], [logits], [logits], CONTEXT, context, align_to_words=True)
    assert (part.text, whole.text) == ("works", "glassworks")
