"""What a fine-tuning model reads of an input section, opened and checked before anything else is done."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headrace.labelled.features import Feature
from headrace.modelzoo.params import InputFacts


@dataclass(frozen=True)
class Item:
    """One example."""

    feature: Feature
    shown: Mapping[str, Any]
    """What a line of predictions says of it beside the prediction."""
    matched: bool | None = None
    """MNLI: whether it is of the domains of training."""
    starts: np.ndarray | None = None
    """Extractive summarization: where each sentence begins, int64 (S,)."""


@dataclass(frozen=True)
class FeatureSet:
    """An input section with its examples."""

    where: str
    facts: InputFacts
    form: str
    files: Mapping[Path, int]
    """Path -> bytes."""
    items: Sequence[Item]
    notes: Sequence[str]
    examples: Sequence[Any] | None = None
    """The task's own, where the items are windows of them."""

    @property
    def size(self) -> int:
        return len(self.items)

    @cached_property
    def features(self) -> list[Feature]:
        return [item.feature for item in self.items]

    def lines(self) -> list[str]:
        """What is read, for the user."""
        longest = max(feature.length for feature in self.features)
        first = f"{self.where}: {self.size:,} examples in {len(self.files)} files: {self.form} (at most {longest} tokens each)"
        return [first, *(f"note: {note}" for note in self.notes)]

    def description(self) -> dict[str, Any]:
        return {
            "processor": self.facts.data_processor,
            "layout": self.form,
            "columns": {},
            "num_records": self.size,
            "files": [[str(path), None, size] for path, size in self.files.items()],
            "notes": list(self.notes),
        }


def notes_of(counts: Counter[str], kind: str) -> list[str]:
    return [f"{number:,} {kind}: {reason}" for reason, number in counts.items() if number]
