"""A tokenizer and its settings -> a folder `AutoTokenizer` and `open_vocabulary` both open; written aside first."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from headrace.errors import UserError
from headrace.text.vocabulary.vocabulary import DESCRIPTION_FILE, EXACT_KINDS

MODEL_INPUT_NAMES = ["input_ids", "token_type_ids", "attention_mask"]  # BERT's; transformers leaves out the second


@contextmanager
def written_aside(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder` to write to, which takes its place when all went well."""
    aside = folder.with_name(folder.name + ".partial")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        yield aside
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot write the vocabulary there: {error}") from error
    except Exception as error:
        if "os error" not in str(error):  # a bare Exception is how tokenizers reports what the disk refuses
            raise
        raise UserError(f"{folder}: cannot write the vocabulary there: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def add_bert_template(tokenizer: Tokenizer, cls: str, sep: str) -> None:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP] with type ids 0 and 1."""
    ids = [(text, tokenizer.token_to_id(text)) for text in (cls, sep)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=ids
    )


def save_fast(tokenizer: Tokenizer, names: dict[str, str], folder: Path) -> None:
    """names: role -> token, such as {"pad": "[PAD]"}."""
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=MODEL_INPUT_NAMES,
        clean_up_tokenization_spaces=False,
        **{f"{role}_token": text for role, text in names.items()},
    ).save_pretrained(str(folder))


def describe(
    aside: Path,
    *,
    kind: str,
    ids: dict[str, int],
    unicode: str,
    lowercase: bool,
    strip_accents: bool,
    training: dict[str, Any] | None = None,
    source: str | None = None,
) -> None:
    """Writes what the tokenizer files don't say; the last file. unicode = own: a loaded tokenizer's."""
    description = {
        "kind": kind,
        "exact": training is not None and kind in EXACT_KINDS,
        "trained": training is not None,
        "unicode": unicode,
        "lowercase": lowercase,
        "strip_accents": strip_accents,
        "ids": ids,
        "training": training,
        "source": source,
    }
    text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    (aside / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
