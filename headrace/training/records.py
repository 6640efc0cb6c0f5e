"""What a run writes down as it goes: metrics.jsonl, TensorBoard scalars and the embedding projector."""

import errno
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from headrace.errors import UserError
from headrace.run_folder import RunFolder
from headrace.text.tokens import write_atomically

# record key -> TensorBoard tag
SCALARS = {
    "loss": "train/loss",
    "masked_lm_loss": "train/masked_lm_loss",
    "next_sentence_loss": "train/next_sentence_loss",
    "next_token_loss": "train/next_token_loss",
    "label_loss": "train/label_loss",
    "learning_rate": "train/learning_rate",
    "gradient_norm": "train/gradient_norm",
    "loss_scale": "train/loss_scale",
    "tokens_per_s": "speed/tokens_per_s",
    "slots_per_s": "speed/slots_per_s",
    "gemm_fraction": "speed/fraction_of_measured_gemm",
    "input_wait_fraction": "speed/input_wait_fraction",
}


class Records:
    """Appends to the run's records. Opening at step n first drops what was recorded after it: that part runs again."""

    def __init__(self, run: RunFolder, step: int):
        self._run = run
        keep_until(run.metrics, step)
        keep_until(run.evaluations, step)
        with _writing(run.tensorboard):
            self._board = SummaryWriter(str(run.tensorboard), purge_step=step + 1 if step else None)

    def train(self, record: dict[str, Any]) -> None:
        append_record(self._run.metrics, record)
        with _writing(self._run.tensorboard):
            for name, tag in SCALARS.items():
                if record.get(name) is not None:
                    self._board.add_scalar(tag, record[name], record["step"])

    def evaluation(self, record: dict[str, Any]) -> None:
        append_record(self._run.evaluations, record)
        with _writing(self._run.tensorboard):
            _evaluation_scalars(self._board, record)
            self._board.flush()

    def close(self) -> None:
        with _writing(self._run.tensorboard):
            self._board.close()


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a .jsonl file; a line cut short by a crash is left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text("utf-8").split("\n"):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records


def append_record(path: Path, record: dict[str, Any]) -> None:
    """In one write; begins a new line where a crash cut the last one short."""
    line = (json.dumps(record, ensure_ascii=False) + "\n").encode()
    with _writing(path), path.open("a+b", buffering=0) as file:
        if size := file.seek(0, 2):
            file.seek(size - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line
        if (written := file.write(line)) != len(line):
            file.truncate(size)
            raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes written")


def record_evaluation(run: RunFolder, record: dict[str, Any]) -> None:
    """Add an evaluation made outside training to the records."""
    append_record(run.evaluations, record)
    with _writing(run.tensorboard), SummaryWriter(str(run.tensorboard)) as board:
        _evaluation_scalars(board, record)


def _evaluation_scalars(board: SummaryWriter, record: dict[str, Any]) -> None:
    for name, value in record.items():
        if name.startswith("eval/") and value is not None:
            board.add_scalar(name, value, record["step"])


def keep_until(path: Path, step: int) -> None:
    """Drop records after `step`, and a last line that a crash cut short."""
    if path.is_file():
        kept = [record for record in read_records(path) if record["step"] <= step]
        write_atomically(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in kept).encode())


def write_projector(run: RunFolder, embeddings: np.ndarray, labels: Sequence[str]) -> None:
    """The embedding projector's files: embeddings (K, H), and a label for each row.

    Paths in the config are relative to the log folder; a tab or newline inside a label would break its table.
    """
    table = "\n".join(_one_cell(label) for label in labels) + "\n"
    config = (
        'embeddings {\n  tensor_name: "word embeddings, commonest tokens"\n'
        '  tensor_path: "token_embeddings.tsv"\n  metadata_path: "token_labels.tsv"\n}\n'
    )
    with _writing(run.tensorboard):
        run.tensorboard.mkdir(exist_ok=True)
        np.savetxt(run.tensorboard / "token_embeddings.tsv", embeddings, fmt="%.5g", delimiter="\t")
        (run.tensorboard / "token_labels.tsv").write_text(table, "utf-8")
        (run.tensorboard / "projector_config.pbtxt").write_text(config, "utf-8")


def _one_cell(label: str) -> str:
    escaped = label.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
    return escaped if escaped.strip() else repr(label)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror}); free space, then run again: it goes on from the last checkpoint"
        ) from None
