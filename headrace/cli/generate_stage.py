"""`headrace generate`: a model writes on, printed as it comes."""

from pathlib import Path

from headrace.errors import UserError
from headrace.evaluation.generate import open_writer
from headrace.params import parse_bytes
from headrace.run_folder import model_folder


def generate_stage(
    folder: Path, prompt: str, max_tokens: int, temperature: float, top_p: float, seed: int, memory: str | None
) -> None:
    try:
        memory_bytes = parse_bytes(memory)
    except ValueError as error:
        raise UserError(f"--memory = {memory!r}: {error}") from None
    num_tokens = max_tokens + len(prompt.encode())  # a token is a byte or more
    writer = open_writer(model_folder(folder), memory_bytes, num_tokens)
    print(prompt, end="", flush=True)
    for text in writer.write(prompt, max_tokens, temperature, top_p, seed):
        print(text, end="", flush=True)
    print()
    writer.close()
