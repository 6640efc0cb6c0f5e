"""`headrace convert`: a params file of the Cerebras Model Zoo as ours."""

from collections.abc import Sequence
from pathlib import Path

from headrace.modelzoo.params import show, translate
from headrace.progress import say
from headrace.text.tokens import write_atomically


def convert_stage(params: Path, overrides: Sequence[str], output: Path | None) -> None:
    """Print the translation, or write it; several phases are printed one after the other and written to a file each."""
    texts = [show(translation) for translation in translate(params, overrides)]
    if output is None:
        print("---\n".join(texts), end="")
        return
    for i, text in enumerate(texts):
        path = output if len(texts) == 1 else output.with_suffix(f".phase-{i}{output.suffix}")
        write_atomically(path, text.encode())
        say(f"{path} is written")
