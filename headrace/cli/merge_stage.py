"""`headrace merge`: the adapter of a LoRA run added to the weights under it."""

from pathlib import Path

from headrace.progress import say
from headrace.run_folder import model_folder
from headrace.training.merge import merge


def merge_stage(folder: Path, out: Path) -> None:
    merge(model_folder(folder), out)
    say(f"{out}: a Hugging Face model folder without an adapter")
