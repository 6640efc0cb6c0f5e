import unicodedata

import pytest

from headrace.text.normalization import normalizer


def normalized(text, *settings):
    steps = normalizer(*settings)
    return steps.normalize_str(text) if steps is not None else text


@pytest.mark.parametrize("unicode", ["none", "nfc", "nfkc"])
@pytest.mark.parametrize("lowercase", [False, True])
@pytest.mark.parametrize("strip_accents", [False, True])
def test_voicing_marks_stay(unicode, lowercase, strip_accents):
    for text in ("パンダ", "ハンダ", "がぎぐげご", "か", "ヷヸ", "ぱぴぷぺぽ"):
        assert normalized(text, unicode, lowercase, strip_accents) == text


def test_none_changes_nothing():
    assert normalizer("none") is None


def test_nfc_composes_kana():
    assert normalized("か\u3099ハ\u309a", "nfc") == "がパ"
    assert normalized("ｶﾞ ㈱ Ａ\u3000", "nfc") == "ｶﾞ ㈱ Ａ\u3000"
    assert normalized("か\u3099", "none") == "か\u3099"


def test_nfkc_facts():
    assert normalized("ｶﾞ㈱①Ａ１～㋿\u3000か\u3099", "nfkc") == "ガ(株)1A1~令和 が"
    assert normalized("〜", "nfkc") == "〜"  # U+301C has no decomposition
    family = "👩\u200d👩\u200d👧"
    assert normalized(family, "nfkc") == family


def test_accents_and_case_are_separate():
    assert normalized("Café NAÏVE", "nfc", True, False) == "café naïve"
    assert normalized("Café e\u0301", "none", False, True) == "Cafe e"
    assert normalized("❤\ufe0f é", "none", False, True) == "❤\ufe0f e"
    assert normalized("ば\u0301", "none", False, True) == "ば"


def test_agrees_with_python_on_japanese_blocks():
    blocks = [(0x20, 0x250), (0x2E80, 0x33FF), (0x4E00, 0x9FFF), (0xF900, 0xFAD9), (0xFF00, 0xFFEF)]
    for form in ("nfc", "nfkc"):
        steps = normalizer(form)
        assert steps is not None
        for first, last in blocks:
            for code in range(first, last + 1):
                assert steps.normalize_str(chr(code)) == unicodedata.normalize(form.upper(), chr(code)), hex(code)


def test_unknown_form_is_refused():
    with pytest.raises(ValueError, match="none, nfc or nfkc"):
        normalizer("nfd")  # pyright: ignore[reportArgumentType]
