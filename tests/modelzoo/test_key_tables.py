"""docs/from-model-zoo.md holds the declarative tables, word for word."""

from pathlib import Path

from headrace.modelzoo.params.reference import TABLES, reference, unique

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-model-zoo.md"


def test_the_page_is_up_to_date():
    """Else: python -m headrace.modelzoo.params.reference docs/from-model-zoo.md"""
    assert reference() in PAGE.read_text("utf-8")


def test_every_key_says_what_becomes_of_it():
    for title, table in TABLES:
        for key in unique(table):
            assert key.words and key.fate in ("used", "no effect", "only"), (title, key.name)
            assert key.fate != "only" or key.allowed, (title, key.name)


def test_no_spelling_belongs_to_two_keys_of_a_table():
    for title, table in TABLES:
        names = [name for key in unique(table) for name in (key.name, *key.also)]
        assert len(names) == len(set(names)), (title, {name for name in names if names.count(name) > 1})
