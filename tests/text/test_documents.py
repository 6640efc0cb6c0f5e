import bz2
import gzip
import json
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from headrace.errors import InputError, UserError
from headrace.text import documents
from headrace.text.documents import FORMATS, Document, clean_document, read_documents
from headrace.text.files import expand_paths
from headrace.text.formats import detect_format

SENTENCES = "猫がいる。\n犬もいる。\n\n鳥が鳴く。\n"
PARAGRAPHS = "猫がいる。犬もいる。寝ている。\n鳥が鳴く。空を飛ぶ。\n"


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def read(path: Path, **options) -> tuple[list[Document], Counter]:
    counts = Counter()
    found = list(read_documents(path, counts=counts, **options))
    assert counts["documents"] == len(found)
    return found, +counts


def test_sentence_per_line(tmp_path: Path):
    path = write(tmp_path / "x.txt", "\n\n" + SENTENCES + " \n　\nまた。")
    found, counts = read(path)
    assert found == [
        Document("猫がいる。\n犬もいる。", f"{path}:3", True),
        Document("鳥が鳴く。", f"{path}:6", True),
        Document("また。", f"{path}:9", True),
    ]
    assert counts == {"documents": 3, "documents of one sentence": 2}


def test_document_per_line_block_and_file(tmp_path: Path):
    path = write(tmp_path / "x.txt", "一。二。\n\n三。\r\n四。")
    found, counts = read(path, format="document_per_line")
    assert [(document.text, document.source) for document in found] == [
        ("一。二。", f"{path}:1"), ("三。", f"{path}:3"), ("四。", f"{path}:4"),
    ]  # fmt: skip
    assert counts["dropped: empty document"] == 1
    found, _ = read(path, format="document_per_block")
    assert [document.text for document in found] == ["一。二。", "三。\n四。"]
    assert not any(document.lines_are_sentences for document in found)
    found, _ = read(path, format="document_per_file")
    assert found == [Document("一。二。\n\n三。\n四。", f"{path}:1")]


@pytest.mark.parametrize("format", ["sentence_per_line", "document_per_line", "document_per_file", "jsonl", "auto"])
@pytest.mark.parametrize("data", [b"", b"\n\n \r\n", b"\xef\xbb\xbf", b"\0\0"])
def test_input_without_text_is_counted(tmp_path: Path, format: str, data: bytes):
    found, counts = read(write(tmp_path / "x", data), format=format)
    assert not found
    assert counts["empty files"] == 1


def test_blank_lines_between_all_sentences_show_in_the_counts(tmp_path: Path):
    _, counts = read(write(tmp_path / "x", "一。\n\n二。\n\n三。\n"))
    assert counts["documents of one sentence"] == counts["documents"] == 3


def test_large_documents_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(documents, "MAX_DOCUMENT_CHARACTERS", 100)
    path = write(tmp_path / "x", "".join(f"{number}番目の文。\n" for number in range(50)) + "\n短い。\n")
    for format, num_small in (("sentence_per_line", 1), ("document_per_file", 0)):
        found, counts = read(path, format=format)
        assert counts["documents split"] == 1
        assert max(len(document.text) for document in found) <= 100
        whole = [text for document in found for text in document.text.split("\n") if text]
        assert whole == [f"{number}番目の文。" for number in range(50)] + ["短い。"]
        assert counts["documents of one sentence"] == num_small
    line = write(tmp_path / "y", json.dumps({"text": "あ。" * 130}))
    found, counts = read(line)
    assert "".join(document.text for document in found) == "あ。" * 130 and counts["documents split"] == 1


def test_a_long_line_is_split_counted_and_bounded(tmp_path: Path):
    path = tmp_path / "x"
    with path.open("w", encoding="utf-8") as file:
        for _ in range(40):
            file.write("猫がいる。" * 200_000)
        file.write("\n次。\n")
    tracemalloc.start()
    counts, num_characters = Counter(), 0
    for document in read_documents(path, format="document_per_line", counts=counts):
        num_characters += len(document.text)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_characters == 40_000_002
    assert counts["long lines split"] == counts["documents split"] == 1
    assert peak_bytes < 100 << 20


def test_jsonl(tmp_path: Path):
    rows = [{"text": "一。\r\n二\0"}, {"text": " "}, {"id": 3, "text": "\u2028三"}]
    data = "\n".join(json.dumps(row) for row in rows[:2]) + "\n\n" + json.dumps(rows[2], ensure_ascii=False)
    path = write(tmp_path / "x.txt", gzip.compress(data.encode()))
    found, counts = read(path)
    assert found == [Document("一。\n二", f"{path}:1"), Document("\u2028三", f"{path}:4")]
    assert counts == {"documents": 2, "dropped: empty document": 1, "NUL characters removed": 1}
    body = write(tmp_path / "b.jsonl", '{"body": "本文"}\n')
    assert [document.text for document in read(body, text_field="body")[0]] == ["本文"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "x"', r"x:2: not valid JSON"),
        ('["text"]', r"x:2: a JSON list, not an object"),
        (
            '{"title": "t", "n": 1}',
            r"x:2: there is no field 'text'; fields found: title \(str\), n \(int\); set text\.text_field",
        ),
        ('{"text": null}', r"x:2: field 'text' is not a string; fields found: text \(NoneType\)"),
        ('{"text": "\\ud800"}', r"x:2: the text holds half a surrogate pair"),
        ("[" * 100_000, r"x:2: not valid JSON"),
    ],
)
def test_bad_json_names_the_line(tmp_path: Path, line: str, message: str):
    path = write(tmp_path / "x", '{"text": "ok"}\n' + line + "\n")
    with pytest.raises(InputError, match=message):
        read(path)


def test_half_surrogates_follow_the_policy(tmp_path: Path):
    path = write(tmp_path / "x", '{"text": "a\\ud800"}\n{"text": "\\ud83d\\ude00"}\n')
    assert [document.text for document in read(path, errors="replace")[0]] == ["a\ufffd", "😀"]
    assert [document.text for document in read(path, errors="skip")[0]] == ["😀"]


def test_parquet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "x.parquet"
    table = arrow.table({"text": ["一。", None, "", "二。"], "n": [1, 2, 3, 4]})
    parquet.write_table(table, path, row_group_size=2)
    found, counts = read(path)
    assert found == [Document("一。", f"{path}:1"), Document("二。", f"{path}:4")]
    assert counts == {"documents": 2, "dropped: no text (null)": 1, "dropped: empty document": 1}
    with pytest.raises(InputError, match=r"no column 'body'; columns found: text \(string\), n \(int64\)"):
        read(path, text_field="body")
    with pytest.raises(InputError, match="holds int64, not strings"):
        read(path, text_field="n")
    with pytest.raises(InputError, match="the Parquet data is damaged"):
        read(write(tmp_path / "cut.parquet", path.read_bytes()[:-20]))
    for kind in (arrow.large_string(), arrow.dictionary(arrow.int32(), arrow.string())):
        parquet.write_table(arrow.table({"text": arrow.array(["三。"]).cast(kind)}), path)
        assert [document.text for document in read(path)[0]] == ["三。"]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"headrace\[parquet\]"):
        read(path)


def test_wikiextractor(tmp_path: Path):
    text = (
        '<doc id="1" url="https://x?curid=1" title="A &amp; &quot;B&quot;">\n'
        'A &amp; "B"\n\n1 &lt; 2 である。\n次。\n\n</doc>\n'
        '<doc id="2" url="" title="空">\n空\n\n</doc>\nそと\n<doc id="3" url="" title="C">\n本文。\n'
    )
    path = write(tmp_path / "wiki_00", text)
    found, counts = read(path)
    assert [(document.text.strip(), document.source) for document in found] == [
        ("1 < 2 である。\n次。", f"{path}:3"), ("本文。", f"{path}:14"),
    ]  # fmt: skip
    assert counts["documents without </doc>"] == counts["dropped: line outside <doc>"] == 1
    assert counts["dropped: empty document"] == 1


def test_mediawiki(tmp_path: Path):
    def page(title: str, text: str, namespace: int = 0, extra: str = "") -> str:
        return (
            f"<page><title>{title}</title><ns>{namespace}</ns>{extra}<revision><text>{text}</text></revision></page>\n"
        )

    pages = [
        page("東京", "'''東京'''は[[日本]]の都市。"),
        page("別名", "#転送", extra='<redirect title="東京"/>'),
        page("Template:x", "x", namespace=10),
        page("空", ""),
        page("東京 (曖昧さ回避)", "* [[東京]]\n{{aimai}}"),
    ]
    xml = "<mediawiki xml:lang='ja'>\n" + "".join(pages) + "</mediawiki>\n"
    path = write(tmp_path / "jawiki.txt", bz2.compress(xml.encode()))
    found, counts = read(path)
    assert found == [Document("'''東京'''は[[日本]]の都市。", f"{path}:2")]
    assert clean_document(found[0], "mediawiki") == "東京は日本の都市。"
    assert clean_document(found[0], "jsonl") == found[0].text
    assert counts == {
        "documents": 1,
        "dropped: redirect": 1,
        "dropped: page is no article": 1,
        "dropped: empty document": 1,
        "dropped: disambiguation page": 1,
    }


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        ([SENTENCES], "sentence_per_line"),
        ([SENTENCES, SENTENCES, "一行。\n"], "sentence_per_line"),
        (["一。\n二。\n三。\n"], "document_per_line"),
        (["一。\n二。\n", "三。\n四。\n"], "document_per_file"),
        ([PARAGRAPHS + "\n" + PARAGRAPHS], "document_per_block"),
        ([PARAGRAPHS + "\n" + PARAGRAPHS] * 3, "document_per_file"),
        ([PARAGRAPHS * 30_000, PARAGRAPHS], "document_per_line"),
        (['\n{"text": "a"}\n', ""], "jsonl"),
        (['<doc id="1" url="u" title="t">\n'], "wikiextractor"),
        (['<?xml version="1.0"?>\n<mediawiki>\n'], "mediawiki"),
        (["{波括弧}で始まる文。\n次の文。\n"], "document_per_line"),
        (["", "\n"], "document_per_file"),
    ],
)
def test_detection(tmp_path: Path, contents: list[str], expected: str):
    for number, content in enumerate(contents):
        write(tmp_path / f"{number}.txt", content)
    found = detect_format(expand_paths(tmp_path))
    assert found.name == expected
    assert found.name in FORMATS and found.reason


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04abc", "zip archive"),
        (b"a.txt".ljust(257, b"\0") + b"ustar\0" + bytes(300), "tar archive"),
        (b'[\n {"text": "x"}\n]', r"x:1: a JSON array"),
        (b'{\n "text": "x"\n}', r"x:1: begins like JSON, but"),
        (gzip.compress(b"PAR1abc"), "Parquet file inside gzip"),
        (bytes(range(128, 256)) * 20, "does not look like text"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes, message: str):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path / "x", data))


def test_mixed_formats_are_refused(tmp_path: Path):
    write(tmp_path / "a.jsonl", '{"text": "a"}\n')
    write(tmp_path / "b.txt", SENTENCES)
    with pytest.raises(InputError, match=r"mixes formats: .*a\.jsonl is jsonl, .*b\.txt is plain text"):
        read_documents(tmp_path)


def test_wrong_options_are_refused_at_the_call(tmp_path: Path):
    path = write(tmp_path / "x", "x")
    with pytest.raises(UserError, match=r"text\.format = jsonlines is unknown; .*did you mean jsonl\?"):
        read_documents(path, format="jsonlines")
    with pytest.raises(UserError, match="use strict, replace, skip"):
        read_documents(path, errors="ignore")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp932", "euc_jp"])
def test_detection_reads_every_encoding(tmp_path: Path, encoding: str):
    text = "猫がいるのです。\r\n犬もいるのです。\r\n\r\n鳥が鳴いている。"
    found, _ = read(write(tmp_path / "x", text.encode(encoding)))
    assert [document.text for document in found] == ["猫がいるのです。\n犬もいるのです。", "鳥が鳴いている。"]
