"""Offsets into the raw text, for every kind of vocabulary, on text that changes under normalisation."""

import random
import unicodedata
from itertools import product

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from headrace.labelled.alignment import Alignment, clusters
from headrace.labelled.spans import encode_with_offsets, text_of_tokens, tokens_of_span, unmappable
from headrace.text.vocabulary import load_vocabulary, train_vocabulary

CORPUS = [
    f"{who}は{where}で{what}を{did}。The {who} of Istanbul, can't they see {what}?"
    for who, where, what, did in product(
        ["私", "パンダ", "ハンダ職人", "東京の学生", "Smith", "株式会社ガス"],
        ["図書館", "大学の庭", "ガラス工場"],
        ["日本語", "ABCの歌", "ガラス", "2つの本"],
        ["勉強している", "食べた", "買いました"],
    )
]
SIZES = {"unigram": 130, "bpe": 200, "wordpiece_mecab": 140, "wordpiece": 190, "character": 500, "byte": 261}
SETTINGS = [
    (kind, unicode, lowercase, strip)
    for kind in SIZES
    for unicode, lowercase, strip in [("none", False, False), ("nfkc", True, False), ("nfkc", True, True)]
    if not (kind == "wordpiece_mecab" and strip)
]

NASTY = [
    "ｶﾞﾗｽとﾊﾟﾝﾀﾞ㍿の㌔㋿①½ﬁ",
    "か\u3099ラスはハ\u309aンタ\u3099",
    "　全角　空白　と  二つ  ",
    "İstanbul İİ ΑΣ ΑΣ. ẞß ŉ",
    "e\u0301e\u0327\u0301e\u0301\u0327 Å ὰ\u0345 q\u0323\u0307",
    "한글 \u1112\u1161\u11ab ﾡﾢ 각\u11a8",
    "a\u00adb\u200bc\u200dd\ufeffe\tf\x01g",
    "👩\u200d👩\u200d👧と❤\ufe0f葛\U000e0100 𠮷野家",
    "[MASK][CLS]▁私▁ ▁▁ Ġ ##ing",
    "",
    " ",
    "\u3000",
    "\u0301",
    "▁",
    "\u3099か",
    "ｱ\uff9e\uff9f゛",
    "２０２４年　私は東京大学の学生です。",
    "\r\n改行\n\n\x85 \u2028",
]
LETTERS = "私は日本ガラス 　abcＡİΣｶﾞﾟ\u3099\u0301\u0327。、㍿①ﬁ👍é\u00ad\u200b▁\tß한\u1161\u11a8"


def nasty_strings(count, seed=1):
    draw = random.Random(seed)
    return NASTY + ["".join(draw.choice(LETTERS) for _ in range(draw.randrange(1, 30))) for _ in range(count)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("vocabularies"), {}

    def get(kind, unicode="nfkc", lowercase=False, strip=False):
        key = (kind, unicode, lowercase, strip)
        if key not in made:
            if kind == "wordpiece_mecab":
                pytest.importorskip("fugashi")
            made[key] = train_vocabulary(
                CORPUS, root / "-".join(map(str, key)), kind=kind, size=SIZES[kind], unicode=unicode,
                lowercase=lowercase, strip_accents=strip,
            )[0]  # fmt: skip
        return made[key]

    return get


def loaded_vocabularies(trained, folder):
    """Tokenizers of other makers' habits: a prepended ▁, byte letters with a prefix, BERT's cleaning, added tokens."""
    unigram = trained("unigram", "none")
    yield "sentencepiece", load_vocabulary(unigram.folder / "sentencepiece.model", folder / "spm", unicode="nfkc")
    vocab = folder / "vocab.txt"
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgist", "##a", "##stanbul", "##s", "東", "京", "ガ"]
    vocab.write_text("\n".join(entries) + "\n", "utf-8")
    yield "vocab.txt", load_vocabulary(vocab, folder / "bert", lowercase=True, strip_accents=True)
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    metaspace = Tokenizer.from_file(str(unigram.folder / "tokenizer.json"))
    metaspace.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    metaspace.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always", split=True)
    metaspace.add_tokens([AddedToken("ＡＢ", normalized=True), AddedToken("学生", normalized=False)])
    gpt = Tokenizer.from_file(str(trained("byte", "none").folder / "tokenizer.json"))
    gpt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    bert = Tokenizer(models.WordPiece({text: i for i, text in enumerate(entries)}, unk_token="[UNK]"))
    bert.normalizer = normalizers.BertNormalizer(lowercase=True)
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    for name, tokenizer in ("metaspace", metaspace), ("gpt", gpt), ("bert", bert):
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder / f"{name}-from")
        yield name, load_vocabulary(folder / f"{name}-from", folder / name)


def bare(text):
    """What tokens spell, without the marks of spaces and of parts of words."""
    return "".join(text.replace("▁", " ").replace("##", "").split())


def check(vocabulary, texts, normalize, spells=True):
    ids = vocabulary.encode_batch(texts)
    for text, expected, encoded in zip(texts, ids, encode_with_offsets(vocabulary, texts), strict=True):
        assert encoded.ids.tolist() == expected
        starts, stops = encoded.starts, encoded.stops
        assert ((starts >= 0) & (starts <= stops) & (stops <= len(text))).all()
        assert (np.diff(starts) >= 0).all() and (np.diff(stops) >= 0).all()
        for i in range(len(encoded)):
            own = text[starts[i] : stops[i]]
            shared = (i and stops[i - 1] > starts[i]) or (i + 1 < len(encoded) and starts[i + 1] < stops[i])
            token = vocabulary.token_text(expected[i])
            token = normalize(token) if token in ("ＡＢ", "学生") else token
            if expected[i] == vocabulary.unk_id or not spells:
                continue
            if shared:
                assert bare(token) in bare(normalize(own)), (text, token, own)
            else:
                assert bare(token) == bare(normalize(own)), (text, token, own)
        covered = np.zeros(len(text), bool)
        for start, stop in zip(starts, stops, strict=True):
            covered[start:stop] = True
        left = "".join(c for c, there in zip(text, covered, strict=True) if not there)
        assert not bare(normalize(left)), (text, left)  # what no token covers is what normalisation drops
        for start, stop in clusters(text):
            found = tokens_of_span(encoded, start, stop)
            assert (found is None) == (not covered[start:stop].any())


@pytest.mark.parametrize("kind, unicode, lowercase, strip", SETTINGS)
def test_tokens_know_their_raw_characters(trained, kind, unicode, lowercase, strip):
    vocabulary = trained(kind, unicode, lowercase, strip)
    check(vocabulary, CORPUS[::9] + nasty_strings(150), vocabulary.normalize, spells=kind != "byte")


@pytest.mark.parametrize("name", ["sentencepiece", "vocab.txt", "metaspace", "gpt", "bert"])
def test_loaded_vocabularies_too(trained, tmp_path, name):
    vocabulary = next(loaded for found, loaded in loaded_vocabularies(trained, tmp_path) if found == name)
    texts = CORPUS[::9] + nasty_strings(150, seed=2)
    if name == "metaspace":  # an added token that is found in the raw text cuts it: covered by the next test
        texts = [text for text in texts if "学生" not in text]
    check(vocabulary, texts, vocabulary.normalize, spells=name != "gpt")


def test_added_tokens_have_offsets(trained, tmp_path):
    vocabulary = next(loaded for found, loaded in loaded_vocabularies(trained, tmp_path) if found == "metaspace")
    for text in "東京の学生は", "ＡＢと学生", "abと ＡＢ":
        (encoded,) = encode_with_offsets(vocabulary, [text])
        assert encoded.ids.tolist() == vocabulary.encode_batch([text])[0]
        for word in "学生", "ＡＢ", "ab":
            if (at := text.find(word)) >= 0:
                assert text_of_tokens(text, encoded, *tokens_of_span(encoded, at, at + len(word))) == word


def spans(vocabulary, text):
    (encoded,) = encode_with_offsets(vocabulary, [text])
    tokens = [vocabulary.token_text(i) for i in encoded.ids]
    return list(zip(tokens, encoded.starts.tolist(), encoded.stops.tolist(), strict=True))


def test_composed_and_expanded_characters(trained):
    vocabulary = trained("character")
    assert spans(vocabulary, "ｶﾞﾗｽ") == [("ガ", 0, 2), ("ラ", 2, 3), ("ス", 3, 4)]
    assert spans(vocabulary, "か㍿") == [("[UNK]", 0, 1), ("株", 1, 2), ("式", 1, 2), ("会", 1, 2), ("社", 1, 2)]
    assert spans(vocabulary, "ハ\u309a\u3000Ａ") == [("パ", 0, 2), (" ", 2, 3), ("A", 3, 4)]
    byte = spans(trained("byte", "nfkc", True), "İ")
    assert len(byte) == 3 and {(start, stop) for _, start, stop in byte} == {(0, 1)}
    assert [(start, stop) for _, start, stop in spans(trained("byte"), "本ｶﾞ")] == [(0, 1)] * 3 + [(1, 3)] * 3


def test_a_mark_put_before_the_sentence_has_no_characters(trained):
    (first, *_) = spans(trained("unigram"), "　　東京")
    assert first[0].startswith("▁") and trained("unigram").normalize("　　東京").startswith(" ")
    (mark, start, stop), *_ = spans(trained("unigram"), "㍿")
    assert mark.startswith("▁") and (start, stop) == ((0, 0) if mark == "▁" else (0, 1))


def test_mecab_words_and_dropped_spaces(trained):
    vocabulary = trained("wordpiece_mecab")
    text = "私は　 ﾊﾟﾝﾀﾞ を\x00食べた"
    (encoded,) = encode_with_offsets(vocabulary, [text])
    assert text_of_tokens(text, encoded, *tokens_of_span(encoded, 5, 10)) == "ﾊﾟﾝﾀﾞ"
    assert tokens_of_span(encoded, 2, 4) is None


def test_spans_and_back(trained):
    vocabulary = trained("character", "none")
    text = "私は 東京　の学生"
    (encoded,) = encode_with_offsets(vocabulary, [text])
    assert tokens_of_span(encoded, 3, 5) == (3, 5)
    assert text_of_tokens(text, encoded, 2, 6) == "東京"
    assert tokens_of_span(encoded, 3, 3) is None
    found = unmappable(text, encoded, [(3, 5), (2, 5), (0, 99), (4, 4)], "f:1")
    assert [(each.source, each.span) for each in found] == [("f:1", (2, 5)), ("f:1", (0, 99)), ("f:1", (4, 4))]
    assert "white space" in found[0].why and "leaves the text" in found[1].why


def test_a_span_inside_a_token_is_listed(trained, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nglass\n##works\n", "utf-8")
    vocabulary = load_vocabulary(vocab, tmp_path / "tokenizer")
    text = "the glassworks\u00ad"
    (encoded,) = encode_with_offsets(vocabulary, [text])
    assert unmappable(text, encoded, [(4, 9), (4, 14), (9, 14)]) == []
    inside, dropped = unmappable(text, encoded, [(6, 14), (4, 15)])
    assert inside.why == "its tokens also cover 'gl' before and '' behind 'assworks'"
    assert dropped.why.startswith("the vocabulary drops '\\xad' at the edge")


def test_kmers_and_numbers(tmp_path):
    dna = ["acgtacguNNA", "AC", "", "ACGTéA"]
    for kind, overlapping in ("kmer", True), ("kmer", False):
        vocabulary, _ = train_vocabulary(
            ["ACGT"], tmp_path / f"k{overlapping}", kind=kind, k=3, overlapping=overlapping
        )
        for text, ids, encoded in zip(
            dna, vocabulary.encode_batch(dna), encode_with_offsets(vocabulary, dna), strict=True
        ):
            assert encoded.ids.tolist() == ids
            covered = [i for a, b in zip(encoded.starts, encoded.stops, strict=True) for i in range(a, b)]
            assert covered == list(range(len(text))) if len(ids) else len(text) < 3
    (encoded,) = encode_with_offsets(vocabulary, ["ACGTAC"])
    assert encoded.starts.tolist() == [0, 3]
    numbers, _ = train_vocabulary([" ".join(map(str, range(100)))], tmp_path / "bins", kind="bins", size=30)
    assert spans(numbers, " 1.5  nan 99 ")[0][1:] == (1, 4)
    assert [found[1:] for found in spans(numbers, " 1.5  nan 99 ")] == [(1, 4), (6, 9), (10, 12)]


def test_alignment_of_any_step():
    """A step that does what no other does still gives every character a place, in order."""

    def step(text):
        return text.upper().replace("B", "").replace("東京", "TOKIO")

    text = "aa bb東京へcc"
    aligned = Alignment([step]).align(text)
    assert aligned.text == "AA TOKIOへCC"
    assert [text[a:b] for a, b in zip(aligned.starts, aligned.stops, strict=True)][-3:] == ["へ", "c", "c"] or (
        aligned.starts == sorted(aligned.starts) and aligned.stops == sorted(aligned.stops)
    )


def test_clusters_hold_what_composes():
    for text in nasty_strings(300, seed=3):
        for form in "NFC", "NFKC":
            parts = [unicodedata.normalize(form, text[a:b]) for a, b in clusters(text)]
            assert "".join(parts) == unicodedata.normalize(form, text)
