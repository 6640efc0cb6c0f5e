"""The command line of `headrace-create-tfrecords`: the flags of the Model Zoo's six scripts, releases 1.6 to 2.10.

One form a script; `FORMS` tells what each makes. Flags, defaults and meanings are the scripts' own; ours are in a
group of their own.
"""

import argparse
import math
import re
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import UserError

ABOUT = """Make BERT training examples from text files: the Model Zoo's create_tfrecords.py in bounded memory, on all
cores, with progress. After an interruption the same command goes on where it stopped and gives the same files.

Other scripts of the Model Zoo, each with its own flags (--help after the name):
"""


@dataclass(frozen=True)
class Form:
    """What a script makes. masks: drawn now and stored (static); else they are drawn when the files are read."""

    script: str
    output: Literal["tfrecord", "csv"]
    pairs: bool
    masks: bool


FORMS = {
    "pairs": Form("create_tfrecords.py", "tfrecord", pairs=True, masks=True),
    "mlm-only": Form("create_tfrecords_mlm_only.py", "tfrecord", pairs=False, masks=True),
    "csv": Form("create_csv.py", "csv", pairs=True, masks=False),
    "csv-static-masking": Form("create_csv_static_masking.py", "csv", pairs=True, masks=True),
    "csv-mlm-only": Form("create_csv_mlm_only.py", "csv", pairs=False, masks=False),
    "csv-mlm-only-static-masking": Form("create_csv_mlm_only_static_masking.py", "csv", pairs=False, masks=True),
}


@dataclass(frozen=True)
class Settings:
    """The checked flags, named as they are. form: a key of FORMS; masks: whether masks are stored."""

    form: str
    masks: bool
    metadata_files: tuple[str, ...]
    multiple_docs_in_single_file: bool
    multiple_docs_separator: str
    single_sentence_per_line: bool
    input_files_prefix: str
    vocab_file: str
    split_num: int
    do_lower_case: bool
    max_seq_length: int
    dupe_factor: int
    short_seq_prob: float
    min_short_seq_length: int
    masked_lm_prob: float
    max_predictions_per_seq: int
    mask_whole_word: bool
    output_dir: str
    num_output_files: int
    name: str
    seed: int
    strip_accents: bool
    allow_cross_document_examples: bool = False
    document_separator_token: str = "[SEP]"
    overlap_size: int = 0
    init_findex: int = 1
    sop_labels: bool = False

    @property
    def pairs(self) -> bool:
        return FORMS[self.form].pairs

    @property
    def is_csv(self) -> bool:
        return FORMS[self.form].output == "csv"

    @property
    def room(self) -> int:
        """Tokens of an example without [CLS] and [SEP]s."""
        return self.max_seq_length - (3 if self.pairs else 2)

    def file_name(self, number: int) -> str:
        """Of the number-th output file, from 0."""
        return f"{self.name}-{number + self.init_findex}.{'csv' if self.is_csv else 'tfrecords'}"


def parse(arguments: list[str]) -> tuple[argparse.Namespace, Settings]:
    """The flags as given (they go into data_params.json) and checked; raises UserError naming the flag.

    Dashes as web pages print them (`–-do_lower_case`) are read as they were meant."""
    arguments = [re.sub(r"^[-–—−]{1,2}(?=[a-z]\w*)", "--", argument) for argument in arguments]
    name = arguments[0] if arguments and arguments[0] in FORMS else "pairs"
    given = parser_of(name).parse_args(arguments[arguments[:1] == [name] :])
    return given, check(name, given)


def check(form: str, given: argparse.Namespace) -> Settings:
    """Raises UserError: the flag, what it was, and what is allowed."""
    flags: dict[str, Any] = vars(given)
    least_length = 5 if FORMS[form].pairs else 4
    for flag, least in (
        ("max_seq_length", least_length),
        ("max_predictions_per_seq", 1),
        ("num_output_files", 1),
        ("init_findex", 0),
    ):
        if flags.get(flag, least) < least:
            raise UserError(f"--{flag} {flags[flag]}: must be at least {least}")
    if flags["max_seq_length"] > 1 << 15:
        raise UserError(f"--max_seq_length {flags['max_seq_length']}: must be at most {1 << 15}")
    if flags.get("dupe_factor", 1) < 1:
        raise UserError(
            f"--dupe_factor {flags['dupe_factor']}: must be at least 1, the number of times the text is used"
        )
    for flag in ("short_seq_prob", "masked_lm_prob"):
        if not (math.isfinite(flags[flag]) and 0 <= flags[flag] <= 1):
            raise UserError(f"--{flag} {flags[flag]}: a probability lies between 0 and 1")
    if not flags["name"] or "/" in flags["name"]:
        raise UserError(f"--name {flags['name']!r}: give the beginning of a file name, without a folder")
    if not flags["multiple_docs_separator"]:
        raise UserError(r"--multiple_docs_separator '': give the text that a line between documents begins with, or \n")
    if flags["processes"] < 0:
        raise UserError(f"--processes {flags['processes']}: must be at least 1, or 0 for one a core")
    masks = FORMS[form].masks and not flags.get("disable_masking", False)
    room = flags["max_seq_length"] - (3 if FORMS[form].pairs else 2)
    overlap = flags.get("overlap_size", 0)
    overlap = flags["max_seq_length"] // 4 if overlap is None else overlap
    if not 0 <= overlap <= room - 2:
        raise UserError(f"--overlap_size {overlap}: must lie between 0 and {room - 2}, --max_seq_length less 4")
    shortest = flags["min_short_seq_length"]
    if shortest is None:
        shortest = 2 + overlap
    elif not 2 + overlap <= shortest <= room:
        raise UserError(f"--min_short_seq_length {shortest}: must lie between {2 + overlap} and {room}")
    if flags["split_num"] is None:
        flags = {**flags, "split_num": 0}
    fields = {field: value for field, value in flags.items() if field in Settings.__dataclass_fields__}
    return Settings(
        **{
            **fields,
            "form": form,
            "masks": masks,
            "metadata_files": tuple(flags["metadata_files"]),
            "multiple_docs_separator": flags["multiple_docs_separator"].replace("\\n", "\n"),
            "dupe_factor": flags.get("dupe_factor", 1) if FORMS[form].pairs or masks else 1,
            "min_short_seq_length": shortest,
            "overlap_size": overlap,
        }
    )


def parser_of(name: str) -> argparse.ArgumentParser:
    form = FORMS[name]
    csv = form.output == "csv"
    others = "\n".join(
        f"  headrace-create-tfrecords {key}   {each.script}" for key, each in FORMS.items() if key != "pairs"
    )
    parser = argparse.ArgumentParser(
        prog="headrace-create-tfrecords" + (f" {name}" if name != "pairs" else ""),
        description=ABOUT + others if name == "pairs" else f"The Model Zoo's {form.script}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument_group(f"flags of {form.script}").add_argument
    add(
        "--metadata_files",
        nargs="+",
        required=True,
        metavar="FILE",
        help="files that list input files, one path a line",
    )
    add("--multiple_docs_in_single_file", action="store_true", help="input files hold several documents each")
    add(
        "--multiple_docs_separator",
        default="\\n",
        help=r"what a line between documents begins with; \n: it is empty (%(default)s)",
    )
    add("--single_sentence_per_line", action="store_true", help="each line is a sentence; else sentences are found")
    add("--input_files_prefix", default="", help="folder that the listed paths are relative to")
    add(
        "--vocab_file", required=True, help="WordPiece vocab.txt, SentencePiece .model or Hugging Face tokenizer folder"
    )
    add("--do_lower_case", action="store_true", help="lower-case the text, for an uncased vocabulary")
    add("--max_seq_length", type=int, default=128, help="tokens of an example, special ones included (%(default)s)")
    add(
        "--short_seq_prob",
        type=float,
        default=0.1,
        help="share of examples aimed at a random shorter length (%(default)s)",
    )
    add(
        "--min_short_seq_length",
        type=int,
        default=None,
        help="the least such length (2, plus the overlap if there is one)",
    )
    add("--masked_lm_prob", type=float, default=0.15, help="share of tokens to predict (%(default)s)")
    add("--max_predictions_per_seq", type=int, default=20, help="most tokens to predict in an example (%(default)s)")
    add("--mask_whole_word", action="store_true", help="choose whole words to predict, not single tokens")
    add("--output_dir", default="./csvfiles/" if csv else "./tfrecords/", help="where the files go (%(default)s)")
    add("--num_output_files", type=int, default=10, help="files the examples are dealt to in turn (%(default)s)")
    add(
        "--name",
        default="preprocessed_data" if csv else "examples",
        help="file names are NAME-1 and so on (%(default)s)",
    )
    add("--seed", type=int, default=0, help="of all random choices (%(default)s)")
    add(
        "--spacy_model", default="en_core_web_sm", help="no effect: sentences are found without spaCy, for Japanese too"
    )
    if name != "csv-mlm-only":
        default = 1 if name == "csv" else 10
        add(
            "--dupe_factor",
            type=int,
            default=default,
            help="times the text is used, pairs and masks anew (%(default)s)",
        )
    if name != "mlm-only":
        about = "input files of one pass: random next sentences come from it and it is shuffled whole; 0 = all (%(default)s)"
        add("--split_num", type=int, default=1000, help=about if form.pairs else "no effect")
    else:
        parser.set_defaults(split_num=None)
    if not form.pairs:
        add("--allow_cross_document_examples", action="store_true", help="an example may go on in the next document")
        add("--document_separator_token", default="[SEP]", help="vocabulary entry between documents (%(default)s)")
        add(
            "--overlap_size",
            type=int,
            default=None,
            help="tokens an example shares with the one before (a quarter of the length)",
        )
        add("--buffer_size", type=float, default=1e6, help="no effect: the whole text is shuffled, in bounded memory")
    if csv:
        add("--init_findex", type=int, default=1, help="number of the first output file (%(default)s)")
    if csv and form.pairs:
        about = "sentence order instead of next sentences: B before A, where it would be a random next (label 1)"
        add("--sop_labels", action="store_true", help=about)
    if name == "mlm-only":
        add("--disable_masking", action="store_true", help="store tokens; masks are drawn when the files are read")
    ours = parser.add_argument_group("flags of ours").add_argument
    ours(
        "--strip_accents",
        action="store_true",
        help="strip accents as the script always does; kana lose voicing marks too",
    )
    ours("--processes", type=int, default=0, help="worker processes, one a core when 0; the files do not depend on it")
    return parser
