"""FASTA in, sequences out: DNA or protein, a document a record, streamed.

    >chr2L some words          a record begins; the header is not text
    acgtNNNNNNNNNNACG          lines of one record are joined; case marks repeats only, so all becomes upper case
    ACGTRACGT                  letters for "one of several bases" (R, N, ...) stay: a vocabulary has no entry for them

DNA: U is read as T, alignment gaps (- and .) are left out, and a run of GAP_BASES or more N, which stands for sequence
nobody knows, ends the document: what follows it is another. Protein: a * at the end (the stop codon) is left out.
A record over MAX_SEQUENCE_CHARACTERS is handed out as several documents that share no letter, so that none of it can
train and be held out at once. Memory: one such piece.
"""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import InputError
from headrace.text.document import DOCUMENTS, SPLIT, Document, ReadOptions
from headrace.text.files import iter_lines

MAX_SEQUENCE_CHARACTERS = 1 << 20
GAP_BASES = 10
RECORDS, GAPS, GAP_LETTERS, AMBIGUOUS, NO_SEQUENCE, ALIGNMENT = (
    "records",
    "gaps cut out",
    "letters in gaps",
    "ambiguous letters",
    "dropped: record without sequence",
    "alignment gaps left out",
)

_GAP = re.compile(f"N{{{GAP_BASES},}}")
_WRONG = {"dna": re.compile(r"[^ACGTURYSWKMBDHVN]"), "protein": re.compile(r"[^A-Z*]")}
_ONE_OF_SEVERAL = {"dna": "RYSWKMBDHVN", "protein": "BJXZ"}
_CALLED = {"dna": "DNA (letters of nucleotides)", "protein": "protein (letters of amino acids and *)"}
_STEP_LETTERS = 1 << 16


def read_fasta(path: Path, options: ReadOptions, counts: Counter[str]) -> Iterator[Document]:
    """A Reader of `headrace.text.documents`; options.language is dna or protein. Raises InputError with file:line."""
    record: _Record | None = None
    in_header = in_line = False
    for line in iter_lines(path, options.encoding, options.errors, counts):
        if not in_line:
            in_header = line.text.startswith((">", ";"))
            if line.text.startswith(">"):
                yield from record.finish() if record else ()
                record = _Record(f"{path}:{line.number}", options.language, counts)
        in_line = not line.ends
        if in_header:
            continue
        if letters := _letters(line.text, options.language, path, line.number, counts):
            if record is None:
                raise InputError(
                    f"{path}:{line.number}: a FASTA record begins with a line that starts with >; found {line.text[:20]!r}."
                )
            yield from record.add(letters)
    yield from record.finish() if record else ()


def _letters(text: str, language: str, path: Path, number: int, counts: Counter[str]) -> str:
    letters = "".join(text.split()).upper()
    if "-" in letters or "." in letters:
        counts[ALIGNMENT] += letters.count("-") + letters.count(".")
        letters = letters.replace("-", "").replace(".", "")
    if wrong := _WRONG[language].search(letters):
        raise InputError(
            f"{path}:{number}: {wrong[0]!r} does not belong to {_CALLED[language]}; set text.language to dna or protein, "
            "whichever the file holds, or repair the line."
        )
    return letters.replace("U", "T") if language == "dna" else letters


class _Record:
    """The record under way: at most _STEP_LETTERS not looked at yet, and the document they will belong to."""

    def __init__(self, source: str, language: str, counts: Counter[str]):
        self.source, self.language, self.counts = source, language, counts
        self._new: list[str] = []
        self._num_new = self._num_letters = self._num_documents = 0
        self._document: list[str] = []
        self._was_split = False
        counts[RECORDS] += 1

    def add(self, letters: str) -> Iterator[Document]:
        self._new.append(letters)
        self._num_new += len(letters)
        if self._num_new >= _STEP_LETTERS:
            yield from self._look(last=False)

    def finish(self) -> Iterator[Document]:
        yield from self._look(last=True)
        yield from self._take()
        self.counts[NO_SEQUENCE] += not self._num_documents

    def _look(self, last: bool) -> Iterator[Document]:
        text, self._new, self._num_new = "".join(self._new), [], 0
        if self.language == "protein":
            yield from self._append(text.removesuffix("*") if last else text)
            return
        if not last:  # N at the end may be the beginning of a gap
            whole, text = text, text.rstrip("N")
            waiting = len(whole) - len(text)
            self.counts[GAP_LETTERS] += max(waiting - GAP_BASES, 0)
            self._new, self._num_new = ["N" * min(waiting, GAP_BASES)], min(waiting, GAP_BASES)
        stretches = _GAP.split(text)
        self.counts[GAPS] += len(stretches) - 1
        self.counts[GAP_LETTERS] += len(text) - sum(map(len, stretches))
        for i, stretch in enumerate(stretches):
            if i:
                yield from self._take()
            yield from self._append(stretch)

    def _append(self, letters: str) -> Iterator[Document]:
        while self._num_letters + len(letters) > MAX_SEQUENCE_CHARACTERS:
            room = MAX_SEQUENCE_CHARACTERS - self._num_letters
            self._document.append(letters[:room])
            letters = letters[room:]
            self.counts[SPLIT] += not self._was_split
            self._was_split = True
            yield from self._take()
        if letters:
            self._document.append(letters)
            self._num_letters += len(letters)

    def _take(self) -> Iterator[Document]:
        text, self._document, self._num_letters = "".join(self._document), [], 0
        if text:
            self.counts[AMBIGUOUS] += sum(text.count(letter) for letter in _ONE_OF_SEVERAL[self.language])
            self.counts[DOCUMENTS] += 1
            self._num_documents += 1
            yield Document(text, self.source)
