"""The key tables as docs/from-model-zoo.md prints them."""

import sys
from collections.abc import Iterable
from pathlib import Path

from headrace.modelzoo.params import trainer_tables as trainer
from headrace.modelzoo.params.keys import REQUIRED, Key
from headrace.modelzoo.params.model_tables import FINE_TUNING, PT_BERT, PT_GPT2, PT_GPTJ, TF_BERT, TF_GPT2, TF_GPTJ
from headrace.modelzoo.params.run_tables import (
    PT_INPUT,
    PT_OPTIMIZER,
    PT_RUN,
    SCHEDULE,
    SPARSITY,
    TF_CSCONFIG,
    TF_INPUT,
    TF_OPTIMIZER,
    TF_RUN,
)

TABLES: tuple[tuple[str, tuple[Key, ...]], ...] = (
    ("train_input, eval_input, predict_input: TensorFlow", TF_INPUT),
    ("train_input, eval_input and dataloaders: PyTorch, trainer files", PT_INPUT),
    ("model: BERT, TensorFlow", TF_BERT),
    ("model: BERT, PyTorch, trainer files", PT_BERT),
    ("model: BERT fine-tuning, beside the above", FINE_TUNING),
    ("model: GPT-2 and GPT-3, TensorFlow", TF_GPT2),
    ("model: GPT-2 and GPT-3, PyTorch, trainer files", PT_GPT2),
    ("model: GPT-J and GPT-NeoX, TensorFlow", TF_GPTJ),
    ("model: GPT-J and GPT-NeoX, PyTorch, trainer files", PT_GPTJ),
    ("optimizer: TensorFlow", TF_OPTIMIZER),
    ("optimizer: PyTorch", PT_OPTIMIZER),
    ("optimizer.learning_rate and schedulers", SCHEDULE),
    ("runconfig: TensorFlow", TF_RUN),
    ("runconfig: PyTorch", PT_RUN),
    ("csconfig", TF_CSCONFIG),
    ("sparsity", SPARSITY),
    ("trainer.init", trainer.INIT),
    ("trainer.init.backend", trainer.BACKEND),
    ("trainer.init.optimizer.NAME", trainer.OPTIMIZER),
    ("trainer.init.precision", trainer.PRECISION),
    ("trainer.init.loop", trainer.LOOP),
    ("trainer.init.checkpoint", trainer.CHECKPOINT),
    ("trainer.init.logging", trainer.LOGGING),
    ("trainer.fit", trainer.FIT),
    ("trainer.validate", trainer.VALIDATE),
    ("trainer.validate_all", trainer.VALIDATE_ALL),
)


def reference() -> str:
    """One table a section, and the callbacks."""
    lines: list[str] = []
    for title, table in TABLES:
        lines += [f"### {title}", "", "| key | value | tool's default | what becomes of it |", "|---|---|---|---|"]
        lines += [_row(key) for key in unique(table)]
        lines.append("")
    lines += ["### trainer.init.callbacks", "", "| callback | what becomes of it |", "|---|---|"]
    lines += [
        f"| `{name}` | {words if name in trainer.HONOURED else f'no effect: {words}'} |"
        for name, words in trainer.CALLBACKS.items()
    ]
    lines += ["| any other | refused by name |", ""]
    return "\n".join(lines)


def unique(table: Iterable[Key]) -> list[Key]:
    """The last row of each name, which is the one that holds."""
    return list({key.name: key for key in table}.values())


def _row(key: Key) -> str:
    names = ", ".join(f"`{name}`" for name in (key.name, *key.also))
    value = " or ".join(f"`{each}`" for each in key.allowed) if key.allowed else key.kind.replace("|", " or ")
    default = "required" if key.default == REQUIRED else "" if key.default is None else f"`{key.default}`"
    fate = {"used": key.words, "no effect": f"no effect: {key.words}", "only": f"other values are refused: {key.words}"}
    return f"| {names} | {value} | {default} | {fate[key.fate]} |".replace("|  |", "| |")


BEGIN, END = "<!-- keys -->", "<!-- end of keys -->"


def rewrite(page: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{reference()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(rewrite(path.read_text("utf-8")), "utf-8")
