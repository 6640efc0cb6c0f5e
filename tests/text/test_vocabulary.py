import gzip
import json
import pickle
import random
import re
import subprocess
import sys
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
from transformers import AutoTokenizer, BertConfig, BertJapaneseTokenizer, PreTrainedTokenizerFast

from headrace.errors import InputError, MissingExtraError, UserError
from headrace.text.vocabulary import load_vocabulary, open_vocabulary, train_vocabulary, words

SHARED = Path(__file__).parents[2].parent / "shared"
SIZES = {"unigram": 140, "bpe": 300, "wordpiece_mecab": 160, "wordpiece": 300, "character": 500, "byte": 261}
KINDS = list(SIZES)
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]

CORPUS = [
    f"{who}は{where}で{what}を{did}。"
    for who, where, what, did in product(
        ["私", "彼女", "パンダ", "ハンダ職人", "東京の学生", "Smith"],
        ["図書館", "大学の庭", "ガラス工場", "駅"],
        ["日本語", "ＡＢＣの歌", "ｶﾞﾗｽ", "2つの本"],
        ["勉強している", "食べた", "買いました", "見なかった"],
    )
] + [
    f"The {adjective} {noun} {verb} the old house, don't they?"
    for adjective, noun, verb in product(
        ["quick", "small", "Japanese"], ["dogs", "students", "teachers"], ["saw", "see", "entered"]
    )
]

MADE = [
    "  二つの空白から始まる",
    " x",
    "a   b  c ",
    " ",
    "",
    "　全角　空白　",
    "か\u3099き\u3099はガ行",
    "ｶﾞｷﾞﾊﾟ",
    "㈱日本①～〜㋿",
    "👩\u200d👩\u200d👧\u200d👦と❤\ufe0f",
    "tab\there",
    "改\u2028行",
    "éàü e\u0301",
    "A.B. Smith's don't do not",
    "パンダハンダ",
    "東京の学生は本を見なかった。",
]


def random_strings(count, seed=1):
    draw = random.Random(seed)
    letters = "私は日本語を学生パンダハ 　abcＡｶﾞ\u3099。、👍é"
    return ["".join(draw.choice(letters) for _ in range(draw.randrange(1, 40))) for _ in range(count)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A function (kind, unicode) -> vocabulary, each trained once."""
    root, made = tmp_path_factory.mktemp("vocabularies"), {}

    def get(kind, unicode="nfkc"):
        if (kind, unicode) not in made:
            if kind == "wordpiece_mecab":
                pytest.importorskip("fugashi")
            folder = root / f"{kind}-{unicode}"
            made[kind, unicode] = train_vocabulary(CORPUS, folder, kind=kind, size=SIZES[kind], unicode=unicode)[0]
        return made[kind, unicode]

    return get


UNICODE = [(kind, unicode) for kind in KINDS for unicode in ("none", "nfc", "nfkc")]
UNICODE.remove(("wordpiece_mecab", "nfc"))


def same_up_to_ties(model, ours, theirs):
    """SentencePiece adds scores in float32, tokenizers in float64: equally probable cuts may differ, nothing else."""
    if ours == theirs:
        return True
    score = sum(model.get_score(i) for i in ours) - sum(model.get_score(i) for i in theirs)
    return sorted(ours) == sorted(theirs) and abs(score) < 1e-3


@pytest.mark.parametrize("kind, unicode", UNICODE)
def test_auto_tokenizer_encodes_identically(trained, kind, unicode):
    vocabulary = trained(kind, unicode)
    auto = AutoTokenizer.from_pretrained(vocabulary.folder)
    assert isinstance(auto, BertJapaneseTokenizer) == (kind == "wordpiece_mecab")
    assert len(auto) == vocabulary.size
    texts = CORPUS[::5] + [text for text in MADE if text] + random_strings(200)
    assert auto(texts, add_special_tokens=False)["input_ids"] == vocabulary.encode_batch(texts)
    first, second = vocabulary.encode_batch(["日本語", "歌を見た"])
    pair = auto("日本語", "歌を見た")
    assert pair["input_ids"] == [2, *first, 3, *second, 3]
    assert pair["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


@pytest.mark.parametrize("kind, unicode", UNICODE)
def test_round_trip(trained, kind, unicode):
    vocabulary = trained(kind, unicode)
    texts = CORPUS + MADE + random_strings(300, seed=2)
    known = 0
    for text, ids in zip(texts, vocabulary.encode_batch(texts), strict=True):
        if vocabulary.unk_id in ids:
            assert not vocabulary.round_trips(text, ids)
            continue
        known += 1
        assert vocabulary.round_trips(text, ids), text
        if kind in ("unigram", "bpe", "character", "byte"):
            assert vocabulary.decode(ids) == vocabulary.normalize(text)
    assert known >= len(CORPUS) or kind == "wordpiece"
    if kind == "byte":
        assert known == len(texts)


@pytest.mark.parametrize("kind", KINDS)
def test_panda_is_not_handa(trained, kind):
    vocabulary = trained(kind)
    panda, handa, composed, halfwidth = vocabulary.encode_batch(["パンダ", "ハンダ", "ハ\u309aンタ\u3099", "ﾊﾟﾝﾀﾞ"])
    assert panda != handa
    assert panda == composed == halfwidth
    assert vocabulary.normalize("ｶﾞ㈱\u3000か\u3099") == "ガ(株) が"


@pytest.mark.parametrize("kind", KINDS)
def test_special_tokens_come_first_and_never_from_text(trained, kind):
    vocabulary = trained(kind)
    assert [vocabulary.token_text(i) for i in range(5)] == SPECIAL
    assert [vocabulary.pad_id, vocabulary.unk_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id] == [
        *range(5)
    ]
    for ids in vocabulary.encode_batch(SPECIAL + ["[MASK]は[SEP]", "本[CLS]"]):
        assert not set(ids) & {0, 2, 3, 4}
    assert AutoTokenizer.from_pretrained(vocabulary.folder)("[MASK]", add_special_tokens=False)["input_ids"] == [4]
    normal = vocabulary.normal_ids
    assert list(normal) == list(range(5, vocabulary.size))


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize("unicode", ["none", "nfc", "nfkc"])
def test_equals_sentencepiece(trained, kind, unicode):
    vocabulary = trained(kind, unicode)
    model = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary.folder / "sentencepiece.model"))
    texts = CORPUS + MADE + SPECIAL + random_strings(1000, seed=3)
    theirs = model.encode([vocabulary.normalize(text) for text in texts])
    ours = vocabulary.encode_batch(texts)
    assert all(same_up_to_ties(model, a, b) for a, b in zip(ours, theirs, strict=True))
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= 5


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_text_after_a_mask_continues_the_sentence(trained, kind):
    auto = AutoTokenizer.from_pretrained(trained(kind).folder)
    tokens = auto.tokenize("私は[MASK]を食べた。")
    after = tokens[tokens.index("[MASK]") + 1]
    assert not after.startswith("▁")
    tokens = auto.tokenize("The [MASK] house")
    assert tokens[tokens.index("[MASK]") + 1 :][0].startswith("▁")
    assert "".join(tokens[tokens.index("[MASK]") + 1 :]) == "▁house"


def test_loads_beside_a_model_config(trained, tmp_path):
    """A run's model folder holds a BERT config, for which AutoTokenizer would otherwise choose BertTokenizer."""
    for kind in KINDS:
        vocabulary = trained(kind)
        folder = tmp_path / kind
        AutoTokenizer.from_pretrained(vocabulary.folder).save_pretrained(folder)
        BertConfig().save_pretrained(folder)
        auto = AutoTokenizer.from_pretrained(folder)
        texts = CORPUS[:20] + MADE[5:10]
        assert auto(texts, add_special_tokens=False)["input_ids"] == vocabulary.encode_batch(texts)


def test_pickle_and_open(trained):
    for kind in KINDS:
        vocabulary = trained(kind)
        again = pickle.loads(pickle.dumps(vocabulary))
        assert again.encode_batch(CORPUS[:50]) == vocabulary.encode_batch(CORPUS[:50])
        assert (again.size, again.kind) == (vocabulary.size, kind)


def test_opening_needs_no_transformers(trained):
    code = (
        "import sys, os; from headrace.text.vocabulary import open_vocabulary;"
        "assert 'TOKENIZERS_PARALLELISM' not in os.environ;"
        f"v = open_vocabulary({str(trained('unigram').folder)!r}, in_worker=True); v.encode_batch(['日本']);"
        "assert os.environ['TOKENIZERS_PARALLELISM'] == 'false'; assert 'transformers' not in sys.modules"
    )
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_open_names_the_folder(tmp_path):
    with pytest.raises(UserError, match=re.escape(str(tmp_path))):
        open_vocabulary(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_training_is_deterministic(trained, kind, tmp_path):
    vocabulary = trained(kind)
    train_vocabulary(iter(CORPUS), tmp_path / "v", kind=kind, size=SIZES[kind])
    names = sorted(path.name for path in vocabulary.folder.iterdir())
    assert names == sorted(path.name for path in (tmp_path / "v").iterdir())
    for name in names:
        assert (tmp_path / "v" / name).read_bytes() == (vocabulary.folder / name).read_bytes(), name
    assert not (tmp_path / "v.partial").exists()


@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece", "wordpiece_mecab"])
def test_a_size_the_text_cannot_give(kind, tmp_path):
    if kind == "wordpiece_mecab":
        pytest.importorskip("fugashi")
    with pytest.raises(UserError, match=r"size = 8000 is more than this text supports: at most (\d+)") as error:
        train_vocabulary(CORPUS, tmp_path / "v", kind=kind, size=8000)
    largest = int(re.search(r"at most (\d+)", str(error.value))[1])
    vocabulary, report = train_vocabulary(CORPUS, tmp_path / "v", kind=kind, size=largest)
    assert vocabulary.size == report.size == largest
    with pytest.raises(UserError, match=r"size = 20 is too small: .* need (\d+)"):
        train_vocabulary(CORPUS, tmp_path / "w", kind=kind, size=20)
    assert not (tmp_path / "w").exists()


def test_character_size_is_an_upper_bound(tmp_path):
    lines = ["ああああいいいうう え"] * 10
    everything, report = train_vocabulary(lines, tmp_path / "a", kind="character", size=8000, character_coverage=1.0)
    assert everything.size == report.size == 5 + 5
    few, _ = train_vocabulary(lines, tmp_path / "b", kind="character", size=7)
    assert [few.token_text(i) for i in range(5, 7)] == ["あ", "い"]


def test_every_line_is_accounted_for(tmp_path):
    odd = ["", "   ", "あ" * 3000, "an ▁ inside", "nul\0inside", "㈱" * 1398]
    _, report = train_vocabulary(CORPUS + odd, tmp_path / "v", size=140)
    assert report.lines_given == len(CORPUS) + 6
    assert (report.lines_empty, report.lines_with_meta_symbol, report.lines_with_nul) == (2, 1, 1)
    assert report.lines_too_long == 1  # 4,194 bytes of ㈱ grow to 6,990, still read
    assert report.lines_used == len(CORPUS) + 1
    assert report.lines_skipped == 5
    assert report.characters_used > sum(map(len, CORPUS)) - 100
    with pytest.raises(UserError, match="no text to train"):
        train_vocabulary(["", " "], tmp_path / "w")


def test_mecab_settings_are_carried_or_refused(tmp_path):
    pytest.importorskip("fugashi")
    for settings in ({"unicode": "nfc"}, {"strip_accents": True}):
        with pytest.raises(UserError, match="wordpiece_mecab"):
            train_vocabulary(CORPUS, tmp_path / "v", kind="wordpiece_mecab", size=160, **settings)
    lower, _ = train_vocabulary(CORPUS, tmp_path / "v", kind="wordpiece_mecab", size=160, lowercase=True)
    auto = AutoTokenizer.from_pretrained(tmp_path / "v")
    texts = [*CORPUS[::7], "ABC Smith ΑΣ. İ ＡＢＣ\u3000Σ", "THE DOGS", "\x1cdogs\x85the\xa0old"]
    assert auto(texts, add_special_tokens=False)["input_ids"] == lower.encode_batch(texts)
    assert lower.encode_batch(["SMITH"]) == lower.encode_batch(["smith"])


def test_mecab_missing_is_said(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "fugashi", None)
    words._tagger.cache_clear()
    with pytest.raises(MissingExtraError, match=r"headrace\[ja\]"):
        train_vocabulary(CORPUS, tmp_path / "v", kind="wordpiece_mecab", size=160)
    vocabulary, _ = train_vocabulary(CORPUS, tmp_path / "w", size=140)
    ids = vocabulary.encode_batch(["日本語"])
    with pytest.raises(MissingExtraError):
        vocabulary.word_starts_batch(["日本語"], ids)
    vocabulary.word_starts_batch(["the dogs"], vocabulary.encode_batch(["the dogs"]))


# --- words


def groups(vocabulary, sentence, rule):
    """The words as the token groups spell them."""
    ids = vocabulary.encode_batch([sentence])[0]
    starts = vocabulary.word_starts(sentence, ids, rule)
    assert starts.dtype == bool and len(starts) == len(ids) and starts[0]
    bounds = [*np.flatnonzero(starts), len(ids)]
    return [vocabulary.decode(ids[a:b]).replace(" ", "") for a, b in pairwise(bounds)]


@pytest.mark.parametrize("kind", ["unigram", "bpe", "character", "byte", "wordpiece_mecab"])
def test_words_are_whole_in_japanese(trained, kind):
    pytest.importorskip("fugashi")
    found = groups(trained(kind), "私は 日本語を勉強している。", "auto")
    mecab = ["私", "は", "日本", "語", "を", "勉強", "し", "て", "いる", "。"]
    assert "".join(found) == "".join(mecab)
    edges = np.cumsum([len(word) for word in mecab])
    assert set(np.cumsum([len(word) for word in found])) <= set(edges)  # tokens may join words, never split a group
    if kind in ("character", "byte"):
        assert found == mecab


@pytest.mark.parametrize("kind", ["unigram", "bpe", "character", "byte"])
def test_words_are_whole_in_english(trained, kind):
    sentence = "  The quick  dogs entered"
    for rule in ("auto", "whitespace"):
        assert groups(trained(kind), sentence, rule) == ["The", "quick", "dogs", "entered"]


def test_wordpiece_marks(trained):
    vocabulary = trained("wordpiece")
    sentence = "The dogs, students"
    ids = vocabulary.encode_batch([sentence])[0]
    assert list(vocabulary.word_starts(sentence, ids)) == list(vocabulary.starts_word(ids))
    assert list(vocabulary.word_starts(sentence, ids)) == [not vocabulary.token_text(i).startswith("##") for i in ids]
    with pytest.raises(UserError, match="whitespace"):
        trained("wordpiece_mecab").word_starts(sentence, ids, "whitespace")


def test_marks_of_pieces_and_characters(trained):
    vocabulary = trained("unigram")
    ids = vocabulary.encode_batch(["The dogs"])[0]
    marked = [vocabulary.token_text(i).startswith("▁") for i in ids]
    assert list(vocabulary.starts_word(ids)) == marked and sum(marked) == 2
    for kind in ("character", "byte"):
        ids = trained(kind).encode_batch(["the  dog"])[0]
        assert list(trained(kind).starts_word(ids)) == [True, False, False, True, False, False, False, False]
    assert len(vocabulary.starts_word([])) == 0


def test_words_of_odd_sentences(trained):
    pytest.importorskip("fugashi")
    for kind, text in product(
        ["unigram", "byte", "character"], [*MADE, "日本\0語", "\0", "日本\n語\r", *random_strings(50)]
    ):
        vocabulary = trained(kind)
        ids = vocabulary.encode_batch([text])[0]
        for rule in ("auto", "mecab", "whitespace"):
            starts = vocabulary.word_starts(text, ids, rule)
            assert len(starts) == len(ids) and (not ids or starts[0])


def test_words_of_text_that_normalises_twice(tmp_path):
    text = "J\u030c the dogs"  # NFKC leaves it, lower case makes it j + U+030C, which NFKC would compose
    vocabulary, _ = train_vocabulary([*CORPUS, *[text] * 50], tmp_path / "v", kind="character", lowercase=True)
    assert vocabulary.encode_batch([vocabulary.normalize(text)]) != vocabulary.encode_batch([text])
    assert groups(vocabulary, text, "whitespace") == ["j\u030c", "the", "dogs"]


def test_wrong_ids_are_noticed(trained):
    with pytest.raises(AssertionError, match="not those of this sentence"):
        trained("unigram").word_starts("the dogs", [5, 6])


# --- loading


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"byte_fallback": True, "normalization_rule_name": "nfkc_cf"},
        {"add_dummy_prefix": False},
        {"remove_extra_whitespaces": False, "user_defined_symbols": ["日本", "<sep>"], "pad_id": 3},
        {"normalization_rule_name": "identity"},
    ],
)
def test_a_loaded_sentencepiece_model_encodes_as_it_did(kind, settings, tmp_path):
    path = tmp_path / "their.model"
    with path.open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(CORPUS + random_strings(300)),
            model_writer=file,
            model_type=kind,
            vocab_size=600,
            hard_vocab_limit=False,
            minloglevel=5,
            **settings,
        )
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    vocabulary = load_vocabulary(path, tmp_path / "v")
    assert vocabulary.kind == kind
    texts = CORPUS + MADE + SPECIAL + ["<s>日本</s>", "▁x"] + random_strings(500, seed=4)
    ours, theirs = vocabulary.encode_batch(texts), model.encode(texts)
    assert all(same_up_to_ties(model, a, b) for a, b in zip(ours, theirs, strict=True))
    assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= 5
    known = [
        (text, ids) for text, ids in zip(texts, ours, strict=True) if vocabulary.unk_id not in ids and "▁" not in text
    ]
    assert len(known) > len(CORPUS) and all(vocabulary.round_trips(text, ids) for text, ids in known)
    added = [vocabulary.pad_id, vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id]
    assert added == list(range(len(model), len(model) + 4))
    assert not set(vocabulary.normal_ids) & {*added, *range(3)}
    auto = AutoTokenizer.from_pretrained(vocabulary.folder)
    plain = [text for text in texts if "[" not in text and "<" not in text]
    assert auto(plain, add_special_tokens=False)["input_ids"] == vocabulary.encode_batch(plain)
    groups(vocabulary, "The ｶﾞﾗｽ 日本語", "whitespace")


def test_damaged_sentencepiece_model(trained, tmp_path):
    data = (trained("unigram").folder / "sentencepiece.model").read_bytes()
    for name, content in (("cut", data[:-100]), ("text", b"hello, this is no model\n"), ("empty", b"")):
        path = tmp_path / f"{name}.model"
        path.write_bytes(content)
        with pytest.raises(InputError, match=name):
            load_vocabulary(path, tmp_path / "v")
    assert not (tmp_path / "v").exists()


def test_a_loaded_folder(trained, tmp_path):
    for kind in KINDS:
        vocabulary = trained(kind)
        loaded = load_vocabulary(vocabulary.folder, tmp_path / kind)
        texts = CORPUS[:100] + MADE
        assert loaded.encode_batch(texts) == vocabulary.encode_batch(texts)
        assert loaded.kind == {"character": "bpe", "byte": "bpe"}.get(kind, kind)
        assert loaded.size == vocabulary.size
        assert list(loaded.normal_ids) == list(vocabulary.normal_ids)


def test_settings_on_top_of_a_loaded_folder(trained, tmp_path):
    base = trained("unigram", "none")
    loaded = load_vocabulary(base.folder, tmp_path / "v", unicode="nfkc", lowercase=True)
    assert loaded.encode_batch(["ＤＯＧＳ ｶﾞﾗｽ"]) == base.encode_batch(["dogs ガラス"])
    auto = AutoTokenizer.from_pretrained(tmp_path / "v")
    assert auto("ＤＯＧＳ ｶﾞﾗｽ", add_special_tokens=False)["input_ids"] == base.encode_batch(["dogs ガラス"])[0]
    mecab = trained("wordpiece_mecab")
    with pytest.raises(UserError, match="BertJapaneseTokenizer"):
        load_vocabulary(mecab.folder, tmp_path / "m", lowercase=True)


def test_a_folder_without_a_mask_token(trained, tmp_path):
    backend = AutoTokenizer.from_pretrained(trained("bpe").folder).backend_tokenizer
    PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", sep_token="[SEP]").save_pretrained(
        tmp_path / "t"
    )
    with pytest.raises(UserError, match="no cls_token, mask_token"):
        load_vocabulary(tmp_path / "t", tmp_path / "v")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="not a Hugging Face tokenizer folder"):
        load_vocabulary(tmp_path / "empty", tmp_path / "v")
    with pytest.raises(UserError, match="no such file"):
        load_vocabulary(tmp_path / "nowhere", tmp_path / "v")
    with pytest.raises(UserError, match="folder the run writes"):
        load_vocabulary(tmp_path / "t", tmp_path / "t")


def test_a_bert_vocab_txt(tmp_path):
    path = tmp_path / "vocab.txt"
    entries = [
        *SPECIAL,
        "[unused0]",
        "[unused1]",
        "the",
        "dog",
        "##s",
        "cafe",
        "café",
        "パ",
        "ハ",
        "##ンダ",
        "日",
        "本",
    ]
    path.write_text("\n".join(entries) + "\n", encoding="utf-8")
    cased = load_vocabulary(path, tmp_path / "a")
    assert [cased.token_text(i) for i in cased.encode_batch(["the dogs café パンダ日本"])[0]] == [
        "the", "dog", "##s", "café", "パ", "##ンダ", "日", "本"
    ]  # fmt: skip
    uncased = load_vocabulary(path, tmp_path / "b", lowercase=True, strip_accents=True)
    assert [uncased.token_text(i) for i in uncased.encode_batch(["The CAFÉ パンダ"])[0]] == [
        "the",
        "cafe",
        "パ",
        "##ンダ",
    ]
    assert 5 not in uncased.normal_ids and 6 not in uncased.normal_ids and len(uncased.normal_ids) == len(entries) - 7
    assert AutoTokenizer.from_pretrained(tmp_path / "b")("The CAFÉ パンダ")["input_ids"] == [2, 7, 10, 12, 14, 3]
    path.write_text("the\n[PAD]\nthe\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"vocab.txt:3: 'the' is there twice"):
        load_vocabulary(path, tmp_path / "c")
    path.write_text("the\ndog\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"\[PAD\], \[UNK\]"):
        load_vocabulary(path, tmp_path / "c")


def test_an_unwritable_place(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the vocabulary"):
        train_vocabulary(CORPUS, tmp_path / "file" / "v", kind="byte")


# --- real text


@pytest.mark.skipif(not (SHARED / "data/aozora.jsonl.gz").exists(), reason="no ../shared/data/aozora.jsonl.gz here")
@pytest.mark.parametrize("kind", ["unigram", "bpe", "wordpiece_mecab"])
def test_real_text(kind, tmp_path):
    if kind == "wordpiece_mecab":
        pytest.importorskip("fugashi")
    sentences = []
    with gzip.open(SHARED / "data/aozora.jsonl.gz", "rt", encoding="utf-8") as file:
        for line in file:
            sentences += [s.strip() for s in re.split(r"(?<=[。！？])|\n", json.loads(line)["text"]) if s.strip()]
            if len(sentences) > 12000:
                break
    training, held_out = sentences[:8000], sentences[8000:12000]
    vocabulary, report = train_vocabulary(training, tmp_path / "v", kind=kind, size=8000 if "mecab" in kind else 4000)
    assert report.lines_used == report.lines_given - report.lines_skipped
    ids = vocabulary.encode_batch(held_out)
    tokens = sum(map(len, ids))
    assert sum(sentence_ids.count(vocabulary.unk_id) for sentence_ids in ids) < 0.02 * tokens
    assert all(vocabulary.round_trips(s, i) for s, i in zip(held_out, ids, strict=True) if vocabulary.unk_id not in i)
    if kind == "wordpiece_mecab":
        theirs = AutoTokenizer.from_pretrained(vocabulary.folder)(held_out, add_special_tokens=False)["input_ids"]
        assert ids == theirs
    else:
        model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "v/sentencepiece.model"))
        theirs = model.encode([vocabulary.normalize(sentence) for sentence in held_out])
        assert all(same_up_to_ties(model, a, b) for a, b in zip(ids, theirs, strict=True))
