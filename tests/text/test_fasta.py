"""FASTA: records become documents, and every letter that is left out is counted under its reason."""

import gzip
import random
from collections import Counter

import pytest

from headrace.errors import InputError, UserError
from headrace.params import validate_params
from headrace.text import fasta
from headrace.text.documents import read_documents
from headrace.text.formats import detect_format


def read(path, language="dna"):
    counts = Counter()
    texts = [document.text for document in read_documents(path, "fasta", counts=counts, language=language)]
    return texts, counts


def test_records_are_documents_whose_lines_are_joined(tmp_path):
    path = tmp_path / "two.fa"
    path.write_text(">one some words\nACGT\r\nacgu\n\n>two\n; a comment\nGG-A.A\n>empty\n>three\nTTRTNN\n")
    texts, counts = read(path)
    assert texts == ["ACGTACGT", "GGAA", "TTRTNN"]
    assert counts[fasta.RECORDS] == 4 and counts[fasta.NO_SEQUENCE] == 1
    assert counts[fasta.ALIGNMENT] == 2 and counts[fasta.AMBIGUOUS] == 3


def test_compressed_files_and_detection(tmp_path):
    path = tmp_path / "reads.fasta.gz"
    path.write_bytes(gzip.compress(b">r1\nACGT\n>r2\nGGGG\n"))
    assert detect_format([path]).name == "fasta"
    assert read(path)[0] == ["ACGT", "GGGG"]


def test_a_run_of_n_ends_a_document_wherever_lines_and_steps_end(tmp_path):
    draw = random.Random(3)
    stretches = ["".join(draw.choices("ACGT", k=draw.choice([1, 300, 70_000]))) for _ in range(40)]
    gaps = [fasta.GAP_BASES + draw.choice([0, 1, 500, 70_000]) for _ in stretches[1:]]
    sequence = stretches[0] + "".join("n" * gap + stretch for gap, stretch in zip(gaps, stretches[1:], strict=True))
    path = tmp_path / "gaps.fa"
    for width in (61, len(sequence)):
        lines = (sequence[i : i + width] for i in range(0, len(sequence), width))
        path.write_text(">chr\n" + "\n".join(lines) + "\n")
        texts, counts = read(path)
        assert texts == stretches
        assert counts[fasta.GAPS] == len(gaps) and counts[fasta.GAP_LETTERS] == sum(gaps)


def test_a_long_record_is_cut_into_documents_that_share_nothing(tmp_path):
    most = fasta.MAX_SEQUENCE_CHARACTERS
    sequence = "".join(random.Random(4).choices("ACGT", k=2 * most + 500))
    path = tmp_path / "chr.fa"
    path.write_text(f">chr\n{sequence}\n>small\nACGT\n")
    texts, counts = read(path)
    assert "".join(texts[:-1]) == sequence and [len(text) for text in texts] == [most, most, 500, 4]
    assert counts["documents split"] == 1


def test_protein_keeps_all_letters_but_the_stop_at_the_end(tmp_path):
    path = tmp_path / "p.faa"
    path.write_text(">p1\nMKUXBZ\nJO*\n>p2\nMA*K\n")
    texts, counts = read(path, "protein")
    assert texts == ["MKUXBZJO", "MA*K"] and counts[fasta.AMBIGUOUS] == 4


@pytest.mark.parametrize(
    ("content", "named"), [("ACGT\n>a\n", "1: a FASTA record begins"), (">a\nACGT\nMKVL\n", "3: 'L' does not belong")]
)
def test_what_is_no_fasta_of_the_language_is_refused_with_its_line(tmp_path, content, named):
    path = tmp_path / "wrong.fa"
    path.write_text(content)
    with pytest.raises(InputError, match=named):
        read(path)


@pytest.mark.parametrize(
    ("text", "task", "named"),
    [
        ({"format": "fasta"}, {}, "text.language = 'ja' does not fit text.format = 'fasta'"),
        ({"language": "dna"}, {}, "sentence_pairs"),
        ({"language": "dna"}, {"examples": "documents", "whole_words": True}, "whole_words"),
        ({"language": "en", "vocabulary": {"kind": "kmer"}}, {}, "is for text.language = 'dna'"),
        ({"language": "dna", "vocabulary": {"kind": "character", "k": 3}}, {}, "text.vocabulary.k = 3"),
        ({"language": "series"}, {}, "goes with text.format"),
        ({"series": {"length": 9}}, {}, "text.series has no meaning"),
        ({"format": "series", "series": {"length": 9, "horizon": 9}}, {}, "horizon = 9"),
        ({"format": "series", "vocabulary": {"kind": "byte"}}, {}, "use bins"),
        ({"vocabulary": {"extend": 5}}, {}, "text.vocabulary.load"),
    ],
)
def test_keys_that_do_not_fit_are_refused(text, task, named):
    tree = {"run": {"folder": "r"}, "text": {"input": "x", **text}, "task": task}
    tree["training"] = {"phases": [{"sequence_length": 16, "batch_size": 1, "steps": 1}], "learning_rate": 0.1}
    with pytest.raises(UserError, match=named):
        validate_params(tree)
