"""`headrace fill`: what a masked language model puts into a blank."""

import tempfile
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForMaskedLM, BertForPreTraining

from headrace.errors import UserError
from headrace.evaluation.fill import fill_blanks
from headrace.evaluation.folder_model import blank_model, least_bytes, open_model, place
from headrace.models.adapters import adapter_config
from headrace.models.segments import segments_of
from headrace.params import parse_bytes
from headrace.run_folder import model_folder
from headrace.text.vocabulary import load_vocabulary, open_vocabulary
from headrace.text.vocabulary.vocabulary import DESCRIPTION_FILE


def fill_stage(folder: Path, texts: list[str], memory: str | None) -> None:
    """Print the best guesses for each text with their probabilities. Raises UserError."""
    try:
        memory_bytes = parse_bytes(memory)
    except ValueError as error:
        raise UserError(f"--memory = {memory!r}: {error}") from None
    folder = model_folder(folder)
    config, cpu = AutoConfig.from_pretrained(folder), torch.device("cpu")
    pretraining = (config.architectures or [""])[0] == "BertForPreTraining"
    if not pretraining and type(config) not in AutoModelForMaskedLM._model_mapping:
        raise UserError(
            f"{folder}: a {config.model_type} is no masked language model; `headrace generate` is for decoders"
        )
    make = BertForPreTraining._from_config if pretraining else AutoModelForMaskedLM.from_config
    model = blank_model(lambda: make(config), cpu, adapter_config(folder))
    segments = segments_of(model)
    weights_bytes = memory_bytes and max(memory_bytes, least_bytes(segments))
    opened = open_model(folder, model, place(segments, weights_bytes), cpu, memory_bytes=memory_bytes)
    with tempfile.TemporaryDirectory() as aside, opened.running() as running:
        ours = (folder / DESCRIPTION_FILE).is_file()
        vocabulary = open_vocabulary(folder) if ours else load_vocabulary(folder, Path(aside) / "tokenizer")
        for filled in fill_blanks(running, vocabulary, texts):
            print(filled.text)
            for text, share in filled.guesses:
                print(f"  {share:7.2%}  {text}")
    opened.close()
