"""The shuffled examples -> the output files, dealt to in turn; killed at any time, the next run goes on.

A worker encodes a group of examples, neighbours in the shuffled order, into a part file; this process appends parts to
the output files in order and then notes the files' sizes in a journal. Bytes after the noted sizes are cut off by the
next run. Output files grow in the scratch folder and are renamed when all of them are whole.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import UserError
from headrace.modelzoo.create.encode import csv_header, records
from headrace.modelzoo.create.examples import Source, build
from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.create.plan import rows_between
from headrace.text.tokens import write_atomically
from headrace.text.vocabulary import Vocabulary

LARGEST_GROUP, SMALLEST_GROUP, GROUPS = 100_000, 2_000, 64
"""Examples of a group, and how many groups there should be in between."""
BATCH_TOKENS = 1 << 19
"""Encoded at once."""


@dataclass(frozen=True)
class Group:
    """Some neighbours in the order of a pass: those with low <= key < high."""

    number: int
    pass_number: int
    low: int
    high: int


def groups(passes: list[int]) -> list[Group]:
    """passes: examples of each. The cut depends on the examples alone, and the files do not depend on the cut."""
    found: list[Group] = []
    for pass_number, examples in enumerate(passes):
        size = min(max(examples // GROUPS, SMALLEST_GROUP), LARGEST_GROUP)
        count = max(1, -(-examples // size))
        bounds = [(i << 64) // count for i in range(count + 1)]
        found += [Group(len(found) + i, pass_number, bounds[i], bounds[i + 1]) for i in range(count)]
    return found


def part_path(folder: Path, group: Group) -> Path:
    return folder / f"{group.number:06d}.part"


def encode_group(
    group: Group,
    files: list[list[int]],
    folder: Path,
    source: Source,
    vocabulary: Vocabulary,
    separator_id: int,
    settings: Settings,
) -> None:
    """Write the part and, when it is whole, its table: for each batch its examples and the bytes for each file.

    files: of the pass's rows."""
    rows = rows_between(source.plan, files, group.low, group.high)
    batch_examples = max(64, BATCH_TOKENS // settings.max_seq_length)
    num_files = settings.num_output_files
    path = part_path(folder, group)
    table: list[tuple[int, list[int]]] = []
    with path.open("wb") as file:
        for first in range(0, len(rows), batch_examples):
            batch = rows[first : first + batch_examples]
            made = list(records(build(batch, source, vocabulary, separator_id, settings), settings, vocabulary))
            sections = [b"".join(made[turn::num_files]) for turn in range(min(num_files, len(made)))]
            file.writelines(sections)
            table.append((len(batch), [len(section) for section in sections]))
    write_atomically(path.with_suffix(".json"), json.dumps(table).encode())


class Outputs:
    """The output files while they grow. journal: groups appended, examples, and each file's bytes and examples."""

    def __init__(self, folder: Path, settings: Settings):
        self.folder, self.settings = folder, settings
        self.names = [settings.file_name(number) for number in range(settings.num_output_files)]
        header = csv_header(settings) if settings.is_csv else b""
        journal = folder / "journal.json"
        if journal.is_file():
            self.state: dict[str, Any] = json.loads(journal.read_text("utf-8"))
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.names:
            (folder / name).write_bytes(header)
        count = len(self.names)
        self.state = {"groups": 0, "examples": 0, "bytes": [len(header)] * count, "records": [0] * count}
        self._note()

    @property
    def is_closed(self) -> bool:
        return self.state.get("closed", False)

    def cut(self) -> None:
        """Take away what was appended after the journal was last written."""
        for name, size in zip(self.names, self.state["bytes"], strict=True):
            path = self.folder / name
            if not path.is_file() or path.stat().st_size < size:
                raise UserError(
                    f"{path}: shorter than the {size:,} bytes already written there; delete {self.folder.parent} and run "
                    "the same command again, from the beginning"
                )
            os.truncate(path, size)

    def append(self, part: Path) -> int:
        """Append a group's part, note it, delete it; returns its examples."""
        table: list[tuple[int, list[int]]] = json.loads(part.with_suffix(".json").read_text("utf-8"))
        sizes, counts, total = list(self.state["bytes"]), list(self.state["records"]), self.state["examples"]
        num_files = len(self.names)
        with part.open("rb") as source:
            for examples, sections in table:
                for turn, size in enumerate(sections):
                    target = (total + turn) % num_files
                    with (self.folder / self.names[target]).open("ab") as file:
                        file.write(source.read(size))
                    sizes[target] += size
                    counts[target] += -(-(examples - turn) // num_files)
                total += examples
        added = total - self.state["examples"]
        self.state |= {"groups": self.state["groups"] + 1, "examples": total, "bytes": sizes, "records": counts}
        self._note()
        part.unlink()
        part.with_suffix(".json").unlink()
        return added

    def close(self, target: Path) -> list[tuple[str, int]]:
        """Move the files that hold examples to `target`; (name, examples) of each. May be called again."""
        kept = [each for each in zip(self.names, self.state["records"], strict=True) if each[1]]
        for name, _ in kept:
            path = self.folder / name
            if path.is_file():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
        self.state["closed"] = True
        self._note()
        for name, _ in kept:
            if (self.folder / name).is_file():
                (self.folder / name).replace(target / name)
        return kept

    def _note(self) -> None:
        write_atomically(self.folder / "journal.json", json.dumps(self.state).encode())
