import bz2
import time
from pathlib import Path

import pytest

from headrace.errors import InputError
from headrace.text.mediawiki import is_disambiguation, iter_pages, strip_wikitext

ARTICLE = """{{Infobox 都市
| 名前 = 東京 {{lang|en|Tokyo}}
| 画像 = [[ファイル:Tokyo.jpg|thumb|[[東京]]の写真]]
}}
<!-- 注釈
二行 -->
'''東京'''（とうきょう、{{lang-en|Tokyo}}）は[[日本]]の[[首都 (法律)|首都]]。
{{仮リンク|都心|en|Center}}は広い<ref name="a">出典[[x]]</ref>。
人口は&nbsp;1400万人<ref name="b" />。
__NOTOC__
== 歴史 ==
[[File:A.jpg|thumb|説明に[[江戸|江戸の町]]と''強調''。]]
江戸は[http://example.com/a?b=c 古い町]で、[https://example.com 公式サイト]がある<br />次の行。
{| class="wikitable"
! 年 !! 人口
|-
| 1900 || {{formatnum:100}}
{|
| 内側
|}
|}
* 項目'''一'''
** 項目二
# 番号
:<math>x^2</math>式の説明
<gallery>
File:B.jpg|絵
</gallery>
<nowiki>文字どおり</nowiki>と<span style="color:red">赤</span>。
[[Category:日本|とうきよう]]
[[en:Tokyo]]
[[:Category:都市|都市の一覧]]
"""


def test_article():
    assert strip_wikitext(ARTICLE).split("\n") == [
        "東京（とうきょう、）は日本の首都。",
        "都心は広い。",
        "人口は 1400万人。",
        "江戸は古い町で、公式サイトがある",
        "次の行。",
        "項目一",
        "項目二",
        "番号",
        "式の説明",
        "文字どおりと赤。",
        "都市の一覧",
    ]


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        ("開いた{{まま\n次の段落[[猫]]。", "開いたまま\n次の段落猫。"),
        ("開いた[[まま\n次の段落[[猫]]。", "開いたまま\n次の段落猫。"),
        ("前<ref>開いたまま\n次。", "前開いたまま\n次。"),
        ("前。\n{|\n| 表\n次。", "前。\n次。"),
        ("a}} b]] c |} d", "a b c |} d"),
        ("[[東京 (曲)|]]", "東京"),
        ("{{a|{{b|[[c}}}}残り", "残り"),
        ("<REF>x</REF>y<ref group=注/>z", "yz"),
        ("（{{x}}、 {{y}}）名（、読み）", "名（読み）"),
        ("<ruby>漢<rt>かん</rt></ruby>", "漢かん"),
        ("1 &lt; 2 &amp; 3", "1 < 2 & 3"),
        ("{{読み仮名|'''漢字'''|かんじ}}は", "漢字は"),
        ("<!-- a --><!-- 開いた", ""),
        ("", ""),
    ],
)
def test_pieces(wikitext: str, expected: str):
    assert strip_wikitext(wikitext) == expected


@pytest.mark.parametrize(
    "unit",
    [
        "{{",
        "[[",
        "{{a|[[b",
        "<ref>",
        "<!--",
        "[http://",
        "'",
        "=",
        "&",
        "[[a|",
        "{|\n",
        "<nowiki>",
        "__A",
        "（、",
        "<b ",
    ]
    + ["[[a", "]]", "}}", "<", "http://", "{{ruby|"],
)
def test_time_is_linear_in_unclosed_markup(unit: str):
    start = time.perf_counter()
    strip_wikitext(unit * (1_000_000 // len(unit)))
    assert time.perf_counter() - start < 3


def test_time_is_linear_in_nested_markup():
    start = time.perf_counter()
    for opening, closing in (("[[a|", "]]"), ("{{ruby|a", "}}"), ("{{lang|x|[[b", "]]}}")):
        depth = 500_000 // len(opening)
        strip_wikitext(opening * depth + closing * depth)
    assert time.perf_counter() - start < 6


def test_disambiguation():
    assert is_disambiguation("'''x'''\n{{aimai}}")
    assert is_disambiguation("{{地名の曖昧さ回避}}")
    assert not is_disambiguation("{{Otheruses|x}} 曖昧さ回避")


def export(*pages: str) -> str:
    body = "".join(f"<page>{page}</page>\n" for page in pages)
    return f'<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" >\n<siteinfo/>\n{body}</mediawiki>\n'


def test_pages(tmp_path: Path):
    path = tmp_path / "pages-articles.xml.bz2"
    old_and_new = "<revision><text>旧</text></revision><revision><text>新&lt;b&gt;</text></revision>"
    path.write_bytes(
        bz2.compress(
            export(
                f"<title>A &amp; B</title><ns>0</ns>{old_and_new}",
                '<title>R</title><ns>0</ns><redirect title="A"/><revision><text>#R</text></revision>',
                "<title>T</title><ns>10</ns><revision><text/></revision>",
            ).encode()
        )
    )
    first, second, third = iter_pages(path)
    assert (first.title, first.namespace, first.is_redirect, first.wikitext, first.line_number) == (
        "A & B", 0, False, "新<b>", 3,
    )  # fmt: skip
    assert second.is_redirect
    assert (third.namespace, third.wikitext) == (10, "")


def test_truncated_export_names_file_and_line(tmp_path: Path):
    path = tmp_path / "dump.xml"
    path.write_text(export("<title>A</title><ns>0</ns><revision><text>あ</text></revision>")[:-40], "utf-8")
    with pytest.raises(InputError, match=r"dump\.xml:\d+: "):
        list(iter_pages(path))
