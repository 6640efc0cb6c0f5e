"""A tokenizer and its settings -> a folder `AutoTokenizer` and `open_vocabulary` both open; written aside first."""

import json
import shutil
from collections.abc import Iterator, Mapping
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


def add_template(tokenizer: Tokenizer, cls: str, sep: str, causal: bool) -> None:
    """[CLS] A [SEP], or [CLS] A [SEP] B [SEP] with type ids 0 and 1; causal: [SEP] A, for what ends a text also begins the
    next, and so stands before a text to go on with."""
    ids = [(text, tokenizer.token_to_id(text)) for text in (cls, sep)]
    if causal:
        template = processors.TemplateProcessing(single=f"{sep} $A", special_tokens=ids[1:])
    else:
        template = processors.TemplateProcessing(
            single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B:1 {sep}:1", special_tokens=ids
        )
    tokenizer.post_processor = template


def save_fast(tokenizer: Tokenizer, names: dict[str, str], folder: Path, causal: bool = False) -> None:
    """names: role -> token, such as {"pad": "[PAD]"}. causal: the sep token begins and ends texts."""
    from transformers import PreTrainedTokenizerFast

    if causal:
        names = {**names, "bos": names["sep"], "eos": names["sep"]}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"] if causal else MODEL_INPUT_NAMES,
        clean_up_tokenization_spaces=False,
        **{f"{role}_token": text for role, text in names.items()},
    ).save_pretrained(str(folder))


def describe(
    aside: Path,
    *,
    kind: str,
    ids: Mapping[str, int | None],
    unicode: str,
    lowercase: bool,
    strip_accents: bool,
    training: dict[str, Any] | None = None,
    source: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Writes what the tokenizer files don't say; the last file. unicode = own: a loaded tokenizer's. more: what single kinds
    need: {"kmer": ...}, {"bins": ...}, {"extension": ...}."""
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
        **(more or {}),
    }
    text = json.dumps(description, indent=1, ensure_ascii=False) + "\n"
    (aside / DESCRIPTION_FILE).write_text(text, encoding="utf-8")
