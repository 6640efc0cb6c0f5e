"""--vocab_file -> a tokenizer folder in the scratch folder, and what each sentence goes through before it."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from headrace.errors import UserError
from headrace.modelzoo.create.flags import Settings
from headrace.modelzoo.create.piece_list import is_piece_list, save_piece_list
from headrace.modelzoo.create.wordpiece import cleaner, save_wordpiece
from headrace.modelzoo.vocabulary import MODEL_SUFFIXES
from headrace.text.vocabulary import Vocabulary, load_vocabulary, open_vocabulary


def is_entry_list(path: Path) -> bool:
    """A vocab.txt, whatever its name: the script asks for nothing else."""
    return not path.is_dir() and path.suffix not in MODEL_SUFFIXES


def make_vocabulary(settings: Settings, folder: Path) -> Vocabulary:
    """Raises UserError, InputError: the file is missing or is no vocabulary."""
    path = Path(settings.vocab_file)
    if not path.exists():
        raise UserError(f"--vocab_file {path}: no such file or folder")
    try:
        if is_entry_list(path):
            save = save_piece_list if is_piece_list(path) else save_wordpiece
            save(path, folder, settings.do_lower_case, settings.strip_accents)
            return open_vocabulary(folder)
        return load_vocabulary(path, folder, lowercase=settings.do_lower_case, strip_accents=settings.strip_accents)
    except UserError as error:  # the keys of our YAML, in this command's words
        text = str(error).replace("text.vocabulary.load =", "--vocab_file")
        text = text.replace("text.unicode, text.lowercase or text.strip_accents", "--do_lower_case or --strip_accents")
        raise type(error)(text) from error


def sentence_cleaner(settings: Settings) -> Callable[[str], str] | None:
    """None where the tokenizer's own normalisation does it all."""
    path = Path(settings.vocab_file)
    if is_entry_list(path) and not is_piece_list(path):
        return cleaner(settings.do_lower_case, settings.strip_accents)
    return None


def vocabulary_sha256(path: Path) -> str:
    """Of the file, or of all files in the folder."""
    digest = hashlib.sha256()
    for file in sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()
