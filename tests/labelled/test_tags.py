import json
from collections import Counter

import numpy as np
import pytest

from headrace.errors import InputError
from headrace.labelled.row import Row
from headrace.labelled.spans import Encoded, encode_with_offsets
from headrace.labelled.tags import (
    IGNORED,
    NO_TOKEN,
    OVERLAP,
    Entity,
    entities_of,
    entities_of_tags,
    first_tokens,
    joined_words,
    labels_of_words,
    runs_of_tags,
    tags_of_entities,
    tags_of_words,
)
from headrace.text.vocabulary import load_vocabulary, train_vocabulary


def encoded(*spans):
    """Tokens with these raw spans."""
    starts, stops = np.array(spans).T
    return Encoded(np.arange(len(spans)), starts, stops)


TEXT = "山田 太郎は 東京へ"
TOKENS = encoded((0, 2), (2, 5), (5, 6), (6, 9), (9, 10))  # 山田|▁太郎|は|▁東京|へ


@pytest.mark.parametrize(
    "given",
    [
        {"span": [7, 9], "type": "place", "name": "東京"},
        {"start": 7, "end": 9, "label": "place"},
        [7, 9, "place"],
    ],
)
def test_entities_of_a_row(given):
    assert entities_of(Row({"text": TEXT, "entities": [given]}, "f:1")) == (TEXT, [Entity(7, 9, "place")])


@pytest.mark.parametrize(
    "given, says",
    [
        ({"span": [7, 99], "type": "a"}, "f:1: entities[0]: the span [7, 99) is empty or leaves the text of 10"),
        ({"span": [7, 7], "type": "a"}, "is empty"),
        ({"span": [7, 9], "type": "a", "name": "京都"}, "name is '京都', but the text has '東京' there"),
        ({"span": [7, 9]}, 'an entity is {"span": [start, stop], "type": "..."}'),
        ({"span": "7-9", "type": "a"}, "an entity is"),
        ([7, 9], "an entity is"),
        (3, "f:1: entities[0] is 3; an entity is"),
    ],
)
def test_bad_entities_are_named(given, says):
    with pytest.raises(InputError) as error:
        entities_of(Row({"text": TEXT, "entities": [given]}, "f:1"))
    assert says in str(error.value)


def test_entities_to_tags_and_back():
    entities = [Entity(0, 5, "person"), Entity(7, 9, "place")]
    tags, kept = tags_of_entities(TOKENS, entities)
    assert tags == ["B-person", "I-person", "O", "B-place", "O"] and kept == entities
    assert entities_of_tags(TEXT, TOKENS, tags) == entities


def test_the_longest_entity_keeps_its_tokens():
    counts = Counter()
    entities = [Entity(0, 2, "name"), Entity(0, 5, "person"), Entity(3, 6, "x"), Entity(7, 8, "a"), Entity(8, 9, "b")]
    tags, kept = tags_of_entities(TOKENS, entities, counts)
    assert tags == ["B-person", "I-person", "O", "B-a", "O"]
    assert kept == [Entity(0, 5, "person"), Entity(7, 8, "a")]
    assert counts == {OVERLAP: 3}
    tags, kept = tags_of_entities(encoded((0, 1)), [Entity(4, 5, "a")], counts)
    assert (tags, kept, counts[NO_TOKEN]) == (["O"], [], 1)


def test_runs():
    assert runs_of_tags(["O", "I-a", "I-a", "B-a", "I-b", "I-b", "O", "I-b"]) == [
        (1, 3, "a"), (3, 4, "a"), (4, 6, "b"), (7, 8, "b"),
    ]  # fmt: skip
    assert runs_of_tags([]) == []


def test_runs_are_those_of_the_pipeline():
    """transformers' aggregation_strategy = "simple", asked of the class itself."""
    from transformers import TokenClassificationPipeline

    class Grouping(TokenClassificationPipeline):
        def __init__(self):
            pass

        def group_sub_entities(self, entities):
            return entities[0]["index"], entities[-1]["index"] + 1, entities[0]["entity"].split("-", 1)[-1]

    draw = np.random.default_rng(0)
    for _ in range(200):
        tags = draw.choice(["O", "B-a", "I-a", "B-b-c", "I-b-c"], draw.integers(1, 12)).tolist()
        groups = Grouping().group_entities([{"entity": tag, "index": i} for i, tag in enumerate(tags)])
        assert runs_of_tags(tags) == [group for group in groups if group[2] != "O"]


@pytest.fixture(scope="module")
def wordpiece(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vocabulary")
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##ta", "##xia", "-", "gene", ",", "the"]
    (folder / "vocab.txt").write_text("\n".join(entries) + "\n", "utf-8")
    return load_vocabulary(folder / "vocab.txt", folder / "tokenizer")


def test_words_label_their_first_tokens(wordpiece):
    words = joined_words(["ataxia", "-", "\u200b", "gene", "gene,"])
    assert words.text == "ataxia - \u200b gene gene,"
    (tokens,) = encode_with_offsets(wordpiece, [words.text])
    assert [wordpiece.token_text(i) for i in tokens.ids] == ["a", "##ta", "##xia", "-", "gene", "gene", ","]
    assert first_tokens(words, tokens).tolist() == [0, 3, -1, 4, 5]
    assert labels_of_words(words, tokens, [1, 2, 7, 0, 3]).tolist() == [1, IGNORED, IGNORED, 2, 0, 3, IGNORED]
    tags = ["B-d", "O", "B-x", "I-d", "O", "B-e", "O"]
    assert tags_of_words(words, tokens, tags) == ["B-d", "I-d", "O", "O", "B-e"]


def test_words_are_joined_as_their_script_writes():
    words = joined_words(["New", "York", "は", "", "大きい", "、", "and", "so", "on", "."])
    assert words.text == "New Yorkは大きい、and so on ."
    assert [words.text[start:stop] for start, stop in words.spans][:4] == ["New", "York", "は", ""]


def test_a_token_over_two_words():
    words = joined_words(["東", "京", "へ"])
    tokens = encoded((0, 2), (2, 3))
    assert first_tokens(words, tokens).tolist() == [0, -1, 1]
    assert tags_of_words(words, tokens, ["B-place", "O"]) == ["B-place", "I-place", "O"]
    assert tags_of_words(words, tokens, ["O", "B-place"]) == ["O", "O", "B-place"]


def test_tags_and_back_through_a_real_vocabulary(tmp_path):
    sentences = ["㍿ガスは東京へ行った。", "ｶﾞｽの株式会社は大阪へ来た。", "東京と大阪のガス会社が行った。"] * 9
    vocabulary, _ = train_vocabulary(sentences, tmp_path / "v", kind="character", size=60)
    for text, names in [("ｶﾞｽは㍿東京　大阪", ["ｶﾞｽ", "㍿", "東京", "大阪"]), (sentences[0], ["㍿ガス", "東京"])]:
        row = Row({"text": text, "entities": [[at := text.index(n), at + len(n), "x"] for n in names]}, "f:1")
        text, entities = entities_of(row)
        (tokens,) = encode_with_offsets(vocabulary, [text])
        tags, kept = tags_of_entities(tokens, entities)
        assert kept == entities == entities_of_tags(text, tokens, tags)
        assert json.loads(json.dumps(entities)) == [list(entity) for entity in entities]


@pytest.mark.parametrize("kind", ["unigram", "wordpiece"])
def test_predicted_entities_are_those_of_the_pipeline(tmp_path, kind):
    import torch
    from transformers import AutoTokenizer, BertConfig, BertForTokenClassification, pipeline

    sentences = [
        "山田は東京の学生です。",
        "The old town has a river.",
        "大阪 と 東京 の ガス会社が行った。",
        "a river town",
    ]
    vocabulary, _ = train_vocabulary(sentences * 9, tmp_path / "v", kind=kind, size=44 if kind == "unigram" else 75)
    torch.manual_seed(0)
    labels = ["O", "B-a", "I-a", "B-b", "I-b"]
    config = BertConfig(
        vocab_size=vocabulary.size, hidden_size=16, num_hidden_layers=1, num_attention_heads=1, intermediate_size=16,
        initializer_range=1.0, id2label=dict(enumerate(labels)), label2id={label: i for i, label in enumerate(labels)},
    )  # fmt: skip
    model = BertForTokenClassification(config).eval()
    tokenizer = AutoTokenizer.from_pretrained(vocabulary.folder)
    theirs = pipeline("token-classification", model=model, tokenizer=tokenizer, aggregation_strategy="simple")
    number = 0
    for text in sentences:
        (tokens,) = encode_with_offsets(vocabulary, [text])
        with torch.no_grad():
            ids = torch.tensor([[vocabulary.cls_id, *tokens.ids, vocabulary.sep_id]])
            best = model(input_ids=ids).logits[0, 1:-1].argmax(-1)
        entities = entities_of_tags(text, tokens, [labels[i] for i in best])
        found = [(text[e["start"] : e["end"]].strip(), e["entity_group"]) for e in theirs(text)]
        found = [entity for entity in found if entity[0]]  # the ▁ before a sentence may be an entity of the pipeline's
        assert [(text[start:stop], type) for start, stop, type in entities] == found
        number += len(found)
    assert number > 8
