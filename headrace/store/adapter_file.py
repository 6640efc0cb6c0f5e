"""The weights of an adapter in one file, as peft reads them: copied from the segments' files, piece by piece."""

from collections.abc import Mapping
from pathlib import Path

import torch

from headrace.models.adapter_names import PREFIX, WEIGHTS
from headrace.store.files import header_of
from headrace.store.layout import Entry, Part

PIECE_BYTES = 16 << 20


def write_adapter(folder: Path, files: Mapping[Path, Part], dtype: torch.dtype) -> None:
    """Write adapter_model.safetensors with the adapter's weights among these files; nothing where there are none."""
    found: list[tuple[Path, int, Entry]] = []  # file, first byte of its data
    for path, part in files.items():
        for entry in part.entries:
            if entry.file_name.startswith(PREFIX):
                found.append((path, (entry.offset - part.start) * dtype.itemsize, entry))
    if not found:
        return
    with (folder / WEIGHTS).open("wb") as target:
        target.write(header_of([entry for _, _, entry in found], dtype))
        for path, start, entry in found:
            with path.open("rb") as source:
                data_start = 8 + int.from_bytes(source.read(8), "little")
                source.seek(data_start + start)
                left = entry.size * dtype.itemsize
                while left:
                    piece = source.read(min(left, PIECE_BYTES))
                    assert piece, f"{path} ends early"
                    target.write(piece)
                    left -= len(piece)
