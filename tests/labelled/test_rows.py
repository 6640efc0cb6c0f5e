import csv
import gzip
import json
import tracemalloc

import pytest

from headrace.errors import InputError, UserError
from headrace.labelled.conll import to_iob2
from headrace.labelled.row import field_of
from headrace.labelled.rows import Row, read_rows
from headrace.progress import console

SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "梅雨",
            "paragraphs": [
                {
                    "context": "梅雨は東アジアの雨季である。",
                    "qas": [
                        {"id": "a", "question": "どこ？", "answers": [{"text": "東アジア", "answer_start": 3}]},
                        {"id": 7, "question": "誰？", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        data = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return str(path)

    return write


def rows_of(path, **options):
    return [(row.fields, row.source.removeprefix(str(path))) for row in read_rows([path], **options)]


def test_json_lines(file):
    path = file("a.jsonl.gz", '{"text": "東京", "label": 1}\r\n\n{"text": "x", "label": null}\n')
    assert rows_of(path) == [({"text": "東京", "label": 1}, ":1"), ({"text": "x", "label": None}, ":3")]


def test_json_list(file):
    path = file("a.json", '[\n {"a": 1},\n\n {"a":\n  2},\n {"a": "],"}\n]\n')
    assert rows_of(path) == [({"a": 1}, ":2"), ({"a": 2}, ":4"), ({"a": "],"}, ":6")]
    assert rows_of(file("b.json", '{"data": [{"a": 1}]}')) == [({"a": 1}, ":1")]


def test_csv_keeps_quotes_commas_and_newlines(file):
    text = 'text,label\r\n"a ""b"", c",x\r\n\r\n"two\nlines　",y\r\nlast,\r\n'
    assert rows_of(file("a.csv", text)) == [
        ({"text": 'a "b", c', "label": "x"}, ":2"),
        ({"text": "two\nlines　", "label": "y"}, ":4"),
        ({"text": "last", "label": ""}, ":6"),
    ]


def test_tsv_has_no_quotes(file):
    assert rows_of(file("a.tsv", 'text\tlabel\n"Well," he said\t1\n')) == [
        ({"text": '"Well," he said', "label": "1"}, ":2")
    ]


def test_tables_in_shift_jis(file):
    path = file("a.csv", "文,種類\n私は学生です。そうでしょう、と言った。,肯定\n".encode("cp932"))
    assert rows_of(path) == [({"文": "私は学生です。そうでしょう、と言った。", "種類": "肯定"}, ":2")]


def test_conll(file):
    text = "-DOCSTART- -X- O O\n\n# id 1\nEU NNP B-NP I-ORG\nrejects VBZ B-VP O\n\n\n# NN O O\n   \nA B C S-PER\n"
    assert rows_of(file("a.txt", text)) == [
        ({"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, ":4"),
        ({"tokens": ["A"], "tags": ["B-PER"]}, ":10"),
    ]


@pytest.mark.parametrize(
    "given, iob2",
    [
        ("I-A I-A B-A O I-B I-A", "B-A I-A B-A O B-B B-A"),  # IOB1
        ("B-A I-A B-A O", "B-A I-A B-A O"),
        ("S-A S-A B-A I-A E-A I-A O", "B-A B-A B-A I-A I-A B-A O"),  # BIOES
        ("U-A B-A L-A L-A", "B-A B-A I-A B-A"),  # BILOU
        ("B-a-b I-a-b I-a", "B-a-b I-a-b B-a"),
    ],
)
def test_every_scheme_becomes_iob2(given, iob2):
    assert to_iob2(given.split()) == iob2.split()


def test_squad(file):
    (first, source), (second, _) = rows_of(file("a.json", json.dumps(SQUAD, indent=1)))
    assert first == {
        "id": "a",
        "question": "どこ？",
        "context": "梅雨は東アジアの雨季である。",
        "answers": {"text": ["東アジア"], "answer_start": [3]},
        "is_impossible": False,
        "title": "梅雨",
    }
    assert source == ": 梅雨/0/a"
    assert second["id"] == "7" and second["is_impossible"] and second["answers"] == {"text": [], "answer_start": []}


def test_auto_says_what_it_found(file):
    paths = [
        file("a.json", '{"a": 1}\n{"a": 2}\n'),
        file("b.txt", "a,b\n1,2\n"),
        file("c.tsv", "東京\tB-LOC\nへ\tO\n"),
        file("d.tsv", "a\tb\n1\tO\n"),
        file("e.json", json.dumps(SQUAD)),
    ]
    with console.capture() as captured:
        assert len(list(read_rows(paths))) == 2 + 1 + 1 + 1 + 2
    said = captured.get()
    for name, format in zip("abcde", ["jsonl", "csv", "conll", "tsv", "squad"], strict=True):
        assert f"{name}." in said and f": {format}, for" in said


def spoilt(**change):
    tree = json.loads(json.dumps(SQUAD))
    question = tree["data"][0]["paragraphs"][0]["qas"][0]
    question.update(change)
    return json.dumps(tree)


@pytest.mark.parametrize(
    "name, content, says",
    [
        ("a.jsonl", "", "a.jsonl holds no rows"),
        ("a.txt", " \n", "a.txt is empty"),
        ("a.csv", "a,b\n", "a.csv holds no rows"),
        ("a.jsonl", '{"a": 1}\n{"a": \n', "a.jsonl:2: not valid JSON"),
        ("a.jsonl", "[1]\n", "a.jsonl:1: [1] is a JSON list; each row must be an object"),
        ("a.jsonl", '{"a": "\\ud83d"}', "a.jsonl:1: '\\ud83d' holds half a surrogate pair (U+D83D)"),
        ("a.json", '[{"a": 1},\n{"a" 2}]', "a.json:2: not valid JSON (Expecting ':' delimiter"),
        ("a.json", '[{"a": 1}\n{"a": 2}]', "a.json:2: not valid JSON ('{\"a\": 2}]' where , or ]"),
        ("a.json", '[{"a": 1},\n', "a.json:1: not valid JSON"),
        ("a.json", '[{"a": 1}', "a.json:1: not valid JSON (the end of the file where"),
        ("a.csv", "a,b\n1,2,3\n", "a.csv:2: 3 fields where the first line names 2 columns (a, b)"),
        ("a.csv", 'a,b\n1,2\n1,"2"3\n', "a.csv:3: not valid CSV"),
        ("a.csv", 'a,b\n1,2\n1,"2\n3\n', "a.csv:3: not valid CSV (unexpected end of data)"),
        ("a.csv", 'a,b\n1,"2\n' + "x\n" * (1 << 20), "a.csv:2: a quote is not closed within 1 Mi"),
        ("a.csv", "a,a\n1,2\n", "a.csv:1: two columns are named 'a'"),
        ("a.tsv", "a\t\n1\t2\n", "a.tsv:1: column 2 has no name"),
        ("a.conll", "a O\nb\n", "a.conll:2: 'b' is one column"),
        ("a.conll", "a O\nb X B-A\n", "a.conll:2: 3 columns where the lines before have 2"),
        ("a.conll", "a\tO\n\tO\n", "a.conll:2: the first column, the token, is empty"),
        ("a.conll", "a O\nb NN\n", "a.conll:2: 'NN', the last column, is no tag; use O, B-TYPE"),
        ("a.conll", "a O\nb B-\n", "a.conll:2: 'B-', the last column, is no tag"),
        ("a.txt", "just words\n", "a.txt:1: 'just words' begins no labelled data we know"),
        ("a.json", spoilt(answers=[{"text": "東アジア", "answer_start": 4}]),
         "梅雨/0/a: answer_start = 4 of the answer '東アジア': the context has 'アジアの' there; it stands at 3"),
        ("a.json", spoilt(answers=[{"text": "北", "answer_start": -1}]), "it stands nowhere in the context"),
        ("a.json", spoilt(answers=[{"text": "", "answer_start": 0}]), "an answer is empty"),
        ("a.json", spoilt(is_impossible=True), "is_impossible is true, but there are answers"),
        ("a.json", spoilt(answers=[{"text": "雨季"}]), "there is no 'answer_start'"),
        ("a.json", spoilt(question=3), "question is 3, not a str"),
        ("a.json", spoilt(id=None), "the question 'どこ？' has no id"),
        ("a.json", '{"data": [{"title": "x", "paragraphs": [{"qas": []}]}]}', "x/0: there is no 'context'"),
    ],
)  # fmt: skip
def test_bad_input_is_named(file, name, content, says):
    with pytest.raises(InputError) as error:
        list(read_rows([file(name, content)]))
    assert says in str(error.value)


@pytest.mark.parametrize("name, format", [("a.jsonl", "auto"), ("a.txt", "auto"), ("a.txt", "conll")])
def test_a_wrong_encoding_names_the_key_of_labelled_data(file, name, format):
    path = file(name, "[東京]\tO\n".encode("cp932"))
    with pytest.raises(InputError, match=r"set data\.encoding to the file's real encoding\."):
        list(read_rows([path], format, "utf-8") if format != "auto" else read_rows([path], "jsonl", "utf-8"))
    with pytest.raises(UserError, match=r"data\.encoding = utf8x is unknown"):
        list(read_rows([path], format, "utf8x"))


def test_wrong_format_is_refused_at_the_call(file):
    with pytest.raises(UserError, match=r"data\.format = jsnol is unknown.*did you mean jsonl"):
        read_rows([file("a.jsonl", '{"a": 1}')], format="jsnol")
    with pytest.raises(InputError, match="matches no file"):
        read_rows(["/nowhere/at/all.jsonl"])


def test_fields_are_asked_for_by_name():
    row = Row({"text": "a", "label": 1}, "f:3")
    assert field_of(row, "text", "data.text") == "a"
    assert field_of(row, "label", "data.label", (str, int)) == 1
    with pytest.raises(InputError, match=r"f:3: there is no field 'txt'; fields found: text, label; set data\.text"):
        field_of(row, "txt", "data.text")
    with pytest.raises(InputError, match="f:3: field 'label' is 1, not a str"):
        field_of(row, "label", "data.label")


def test_memory_does_not_grow_with_the_file(tmp_path):
    for name, line in (
        ("a.jsonl", '{"a": "%s"}\n'),
        ("a.csv", '%s,"b"\n'),
        ("a.tsv", "%s\tb\n"),
        ("a.conll", "%s O\n\n"),
    ):
        path = tmp_path / name
        path.write_text((line % ("x" * 900)) * 10_000)
        rows = read_rows([str(path)])
        next(rows)
        tracemalloc.start()
        assert sum(1 for _ in rows) in (9_999, 9_998)  # a table's first line names its columns
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert path.stat().st_size > 9e6 and peak_bytes < 6e6, (name, peak_bytes)


def test_long_fields_leave_the_limit_of_the_csv_module_as_it_was(tmp_path):
    before = csv.field_size_limit()
    (tmp_path / "long.csv").write_text(f'text,label\n"{"a" * (before + 10)}",x\n"b",y\n')
    rows = read_rows([str(tmp_path / "long.csv")])
    assert len(next(rows).fields["text"]) == before + 10
    assert csv.field_size_limit() == before
    assert next(rows).fields == {"text": "b", "label": "y"}
