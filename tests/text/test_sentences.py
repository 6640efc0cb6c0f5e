import gzip
import json
import random
import re
import time
from pathlib import Path

import pytest

from headrace.text.sentences import best_cut, split_long_line, split_sentences

SHARED = Path(__file__).parents[2].parent / "shared"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("今日は晴れ。明日は雨！本当？はい．", ["今日は晴れ。", "明日は雨！", "本当？", "はい．"]),
        ("えっ！？まさか…。そうだ", ["えっ！？", "まさか…。", "そうだ"]),
        ("彼は「行く。待て！」と言った。そして去った。", ["彼は「行く。待て！」と言った。", "そして去った。"]),
        ("「行こう。」彼は言った。", ["「行こう。」", "彼は言った。"]),
        ("これは例（注。説明。）である。次。", ["これは例（注。説明。）である。", "次。"]),
        ("【終わり。】次の文。", ["【終わり。】", "次の文。"]),
        ("　段落の字下げ。\n改行\u3000\n\n終わり", ["段落の字下げ。", "改行", "終わり"]),
        ("Yahoo!ニュースを見た。円周率は３．１４だ。https://a.jp/?q=1を開く。", None),
        ("閉じない「括弧。" + "あ" * 250 + "。次の文。", ["閉じない「括弧。" + "あ" * 250 + "。", "次の文。"]),
        ("", []),
        ("。", ["。"]),
    ],
)
def test_japanese(text: str, expected: list[str] | None):
    if expected is None:
        expected = ["Yahoo!ニュースを見た。", "円周率は３．１４だ。", "https://a.jp/?q=1を開く。"]
    assert split_sentences(text, "ja") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Mr. Smith paid 3.50. He left.", ["Mr. Smith paid 3.50.", "He left."]),
        ('"Why?" He ran. (It rained.) Then', ['"Why?"', "He ran.", "(It rained.)", "Then"]),
        ("The U.S. Army, e.g. Company B, won vs. J. R. Doe.", ["The U.S. Army, e.g. Company B, won vs. J. R. Doe."]),
        ("See No. 5 there. He said no. Then more... and so on.", None),
        ("What?! No way! 12 men came.", ["What?!", "No way!", "12 men came."]),
        ("one\ntwo", ["one", "two"]),
    ],
)
def test_english(text: str, expected: list[str] | None):
    if expected is None:
        expected = ["See No. 5 there.", "He said no.", "Then more... and so on."]
    assert split_sentences(text, "en") == expected


def test_lines_are_sentences():
    assert split_sentences("一。二。\r\n\n 三 ", "ja", lines_are_sentences=True) == ["一。二。", "三"]


def without_space(text: str) -> str:
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize("language", ["ja", "en"])
def test_nothing_is_lost_whatever_the_text(language: str):
    source = random.Random(5)
    for _ in range(2000):
        text = "".join(source.choices("あ漢A1.!? \n　「」『』（）()。！？．…”\"'", k=source.randrange(60)))
        assert without_space("".join(split_sentences(text, language))) == without_space(text)


def test_nothing_is_lost_in_real_text():
    path = SHARED / "data" / "aozora.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        texts = [json.loads(next(file))["text"] for _ in range(8)]
    for text in texts:
        sentences = split_sentences(text, "ja")
        assert without_space("".join(sentences)) == without_space(text)
        assert len(text) / len(sentences) < 200


@pytest.mark.parametrize(
    "text", ["." * 1_000_000, "a. " * 300_000, "「" * 1_000_000, "。」" * 400_000, ". " + " " * 999_999]
)
def test_time_is_linear(text: str):
    start = time.perf_counter()
    for language in ("ja", "en"):
        split_sentences(text, language)
    assert time.perf_counter() - start < 5


def test_split_long_line_keeps_all_within_the_limit():
    source = random.Random(6)
    for max_bytes in (4, 7, 64, 1000):
        text = "".join(source.choices("aあ😀。、 か\u3099\n", k=3000))
        pieces = split_long_line(text, max_bytes)
        assert "".join(pieces) == text
        assert max(len(piece.encode()) for piece in pieces) <= max_bytes
    assert split_long_line("短い", 100) == ["短い"]
    assert split_long_line("", 100) == []
    assert split_long_line("あいう。えおかき", 18) == ["あいう。", "えおかき"]


def test_best_cut_prefers_ends_and_keeps_marks():
    assert best_cut("一二三。四五六七", 0, 6) == 4
    assert best_cut("一二三\n四五。六七", 0, 7) == 4
    assert best_cut("aaaa bbbb", 0, 8) == 5
    assert best_cut("かか\u3099かか\u3099か", 0, 5) == 4
    assert best_cut("短い", 0, 10) == 2
