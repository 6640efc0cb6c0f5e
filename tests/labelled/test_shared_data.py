"""Every gold span of the shared sets maps to tokens and back to exactly its text, or is listed as unmappable."""

import gzip
import json
from pathlib import Path

import pytest

from headrace.labelled.rows import read_rows
from headrace.labelled.spans import encode_with_offsets, text_of_tokens, tokens_of_span, unmappable
from headrace.text.sentences import split_sentences
from headrace.text.vocabulary import train_vocabulary

DATA = Path(__file__).parents[2].parent / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the shared data are not here")


def literature(num_characters):
    sentences, size = [], 0
    with gzip.open(DATA / "aozora.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            for sentence in split_sentences(json.loads(line)["text"], "ja"):
                sentences.append(sentence)
                size += len(sentence)
            if size > num_characters:
                return sentences
    raise AssertionError("there is less text than asked for")


@pytest.fixture(scope="module")
def japanese(tmp_path_factory):
    root, made, sentences = tmp_path_factory.mktemp("vocabularies"), {}, literature(200_000)

    def get(kind):
        if kind == "wordpiece_mecab":
            pytest.importorskip("fugashi")
        if kind not in made:
            made[kind] = train_vocabulary(
                sentences, root / kind, kind=kind, size=6000 if kind == "wordpiece_mecab" else 3000
            )[0]
        return made[kind]

    return get


def num_unmappable(vocabulary, examples):
    """examples: (source, text, spans). The spans' number, and that of the listed ones, which are exactly the wrong ones."""
    texts = list(dict.fromkeys(text for _, text, _ in examples))
    encoded = dict(zip(texts, encode_with_offsets(vocabulary, texts), strict=True))
    total = num_listed = 0
    for source, text, spans in examples:
        listed = {each.span for each in unmappable(text, encoded[text], spans, source)}
        for start, stop in spans:
            tokens = tokens_of_span(encoded[text], start, stop)
            back = tokens is not None and text_of_tokens(text, encoded[text], *tokens)
            assert (back == text[start:stop]) == ((start, stop) not in listed), (source, text[start:stop], back)
        total, num_listed = total + len(spans), num_listed + len(listed)
    return total, num_listed


def jsquad():
    found = []
    for row in read_rows([str(DATA / "jglue" / "jsquad-v1.3_valid-v1.3.json.gz")]):
        answers = row.fields["answers"]
        spans = {(at, at + len(text)) for at, text in zip(answers["answer_start"], answers["text"], strict=True)}
        found.append((row.source, row.fields["context"], sorted(spans)))
    return found


def ner():
    rows = read_rows([str(DATA / "ner_wikipedia_ja.json.gz")])
    return [
        (row.source, row.fields["text"], [tuple(entity["span"]) for entity in row.fields["entities"]]) for row in rows
    ]


@pytest.mark.parametrize(
    "kind, in_jsquad, in_ner", [("unigram", 0.08, 0.06), ("wordpiece_mecab", 0.01, 0.01), ("character", 0, 0)]
)
def test_japanese_answers_and_entities(japanese, kind, in_jsquad, in_ner):
    total, listed = num_unmappable(japanese(kind), jsquad())
    assert total == 5839 and listed <= in_jsquad * total
    total, listed = num_unmappable(japanese(kind), ner())
    assert total == 13185 and listed <= in_ner * total


def test_every_row_is_read():
    num_rows = {
        "jglue/jsts-v1.3_valid-v1.3.json.gz": 1457,
        "jglue/jcommonsenseqa-v1.3_valid-v1.3.json.gz": 1119,
        "ncbi_disease/devel.tsv.gz": 923,
    }
    for name, number in num_rows.items():
        assert sum(1 for _ in read_rows([str(DATA / name)])) == number
