"""`headrace-create-tfrecords`: BERT examples from text files, as the Model Zoo's create_tfrecords.py makes them.

The work is done in the hidden folder OUTPUT_DIR/.NAME.scratch, stage by stage (`headrace.modelzoo.create`); each stage
leaves records of what is done, so the same command goes on after any interruption. The files appear when they are
whole, data_params.json last.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from headrace.errors import UserError
from headrace.modelzoo.console import told_plainly
from headrace.modelzoo.create.flags import FORMS, Settings, parse
from headrace.modelzoo.create.inputs import Chunk, chunks, files_sha256, input_files, total_bytes
from headrace.modelzoo.create.piece_list import is_piece_list
from headrace.modelzoo.create.plan import record_path, units, write_summary
from headrace.modelzoo.create.token_store import TokenStore, assemble, is_finished
from headrace.modelzoo.create.tokenize import chunk_path
from headrace.modelzoo.create.vocabulary import is_entry_list, make_vocabulary, vocabulary_sha256
from headrace.modelzoo.create.workers import Folders, Pool, do_chunk, do_group, do_unit, separator_id
from headrace.modelzoo.create.write import Group, Outputs, groups, part_path
from headrace.modelzoo.records.tfrecord import crc32c
from headrace.progress import progress, say
from headrace.text.tokens import write_atomically
from headrace.text.vocabulary import open_vocabulary

PROGRAM = "headrace-create-tfrecords"


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command. Errors of the user's making end in one message and exit code 2."""
    with told_plainly(PROGRAM):
        given, settings = parse(sys.argv[1:] if arguments is None else arguments)
        create(settings, vars(given))


def create(settings: Settings, given: dict[str, Any]) -> dict[str, Any]:
    """Make the files; returns what data_params.json says. given: the flags as they were given.

    Raises UserError, InputError: a flag, a file and line of the input, other files in --output_dir."""
    if not settings.is_csv:
        crc32c()  # whose package may be missing
    files = input_files(settings)
    output = Path(settings.output_dir)
    folders = Folders(output / f".{settings.name}.scratch")
    made_of = _made_of(settings, files)
    done = _finished_before(output, settings, made_of, folders)
    if done is not None:
        say(f"{output}: these files were made before with the same flags, text and vocabulary; nothing to do")
        return done
    _say_what_has_no_effect(settings, given)
    with _locked(folders.root):
        _prepare_scratch(folders, settings, made_of)
        with Pool(given["processes"], folders, settings) as pool:
            if not is_finished(folders.store):
                _tokenize(files, folders, settings, pool)
            store = TokenStore(folders.store)
            _say_tokens(store, settings)
            outputs = Outputs(folders.outputs, settings)
            if not outputs.is_closed:
                _write(store, outputs, folders, settings, pool)
        params = _finish(outputs, store, folders, settings, given, made_of)
    shutil.rmtree(folders.root)
    return params


def _tokenize(files: list[Path], folders: Folders, settings: Settings, pool: Pool) -> None:
    folders.chunks.mkdir(exist_ok=True)
    num_chunks = 0
    with progress("Tokenizing", total_bytes(files), "bytes") as meter:

        def missing() -> Iterator[Chunk]:
            nonlocal num_chunks
            for chunk in chunks(files, settings):
                num_chunks = chunk.number + 1
                if chunk_path(folders.chunks, chunk.number).is_file():
                    meter.advance(chunk.num_bytes)
                else:
                    yield chunk

        for chunk in pool.each(do_chunk, missing()):
            meter.advance(chunk.num_bytes)
    vocabulary_size = open_vocabulary(folders.vocabulary).size
    assemble(
        (chunk_path(folders.chunks, number) for number in range(num_chunks)),
        folders.store,
        np.dtype(np.uint16 if vocabulary_size <= 1 << 16 else np.uint32),
        settings.mask_whole_word and settings.masks,
    )
    shutil.rmtree(folders.chunks)


def _write(store: TokenStore, outputs: Outputs, folders: Folders, settings: Settings, pool: Pool) -> None:
    if not (folders.plan / "plan.json").is_file():
        folders.plan.mkdir(exist_ok=True)
        all_units = units(store, settings)
        missing = [unit for unit in all_units if not record_path(folders.plan, unit).is_file()]
        done = sum(unit.after - unit.first for unit in all_units) - sum(unit.after - unit.first for unit in missing)
        total = store.num_documents * settings.dupe_factor
        with progress("Planning", total, "documents", done) as meter:
            for unit in pool.each(do_unit, missing):
                meter.advance(unit.after - unit.first)
        write_summary(folders.plan, all_units)
    plan = json.loads((folders.plan / "plan.json").read_text("utf-8"))
    outputs.cut()
    folders.parts.mkdir(exist_ok=True)
    left = groups([each["examples"] for each in plan["passes"]])[outputs.state["groups"] :]
    with progress("Writing", plan["examples"], "examples", outputs.state["examples"]) as meter:

        def missing_parts() -> Iterator[tuple[Group, list]]:
            for group in left:
                whole = part_path(folders.parts, group).with_suffix(".json").is_file()
                yield group, [] if whole else plan["passes"][group.pass_number]["files"]

        for group, _ in pool.each(do_group, missing_parts()):
            meter.advance(outputs.append(part_path(folders.parts, group)))


def _finish(
    outputs: Outputs,
    store: TokenStore,
    folders: Folders,
    settings: Settings,
    given: dict[str, Any],
    made_of: dict[str, Any],
) -> dict[str, Any]:
    output = Path(settings.output_dir)
    plan = json.loads((folders.plan / "plan.json").read_text("utf-8"))
    kept = outputs.close(output)
    if settings.is_csv:
        write_atomically(output / "meta.dat", _meta(output, kept).encode())
    params = {
        **given,
        "n_examples": outputs.state["examples"],
        "n_docs": store.num_documents,
        "n_sentences": store.counts["sentences"],
        "n_tokens": store.counts["tokens"],
        "made_of": made_of,
    }
    if settings.pairs:
        params["random_next_share"] = round(plan["random_next"] / max(plan["examples"], 1), 4)
    write_atomically(output / "data_params.json", json.dumps(params, ensure_ascii=False, indent=1).encode())
    say(f"{outputs.state['examples']:,} examples in {len(kept)} files: {output}")
    if len(kept) < settings.num_output_files:
        say(f"--num_output_files {settings.num_output_files}: files without an example were left out")
    return params


def _meta(output: Path, kept: list[tuple[str, int]]) -> str:
    """meta.dat: these files, after those of other runs that it named and that are still there."""
    path, own = output / "meta.dat", {name for name, _ in kept}
    before = path.read_text("utf-8").splitlines() if path.is_file() else []
    others = [line for line in before if (name := line.split(" ")[0]) not in own and (output / name).is_file()]
    return "".join(f"{line}\n" for line in (*others, *(f"{name} {count}" for name, count in kept)))


def _made_of(settings: Settings, files: list[Path]) -> dict[str, Any]:
    """What the files are a function of: equal ones, equal files."""
    if not Path(settings.vocab_file).exists():
        raise UserError(f"--vocab_file {settings.vocab_file}: no such file or folder")
    fields = {name: getattr(settings, name) for name in Settings.__dataclass_fields__ if name != "output_dir"}
    return {
        **fields,
        "metadata_files": list(settings.metadata_files),
        "input_files_sha256": files_sha256(files),
        "vocabulary_sha256": vocabulary_sha256(Path(settings.vocab_file)),
    }


def _finished_before(
    output: Path, settings: Settings, made_of: dict[str, Any], folders: Folders
) -> dict[str, Any] | None:
    """data_params.json when the same files are there already; raises UserError when others are in the way."""
    params = output / "data_params.json"
    first = output / settings.file_name(0)
    if folders.root.is_dir() or not first.exists():
        return None
    found = json.loads(params.read_text("utf-8")) if params.is_file() else {}
    before = found.get("made_of") or {}
    if before == made_of:
        return found
    changed = ", ".join(_changes(before, made_of)) if before else "by another program"
    raise UserError(
        f"--output_dir {output}: holds {first.name} already, made otherwise: {changed}; give another --output_dir or "
        "--name, or delete those files"
    )


def _changes(before: dict[str, Any], made_of: dict[str, Any]) -> list[str]:
    """What differs, in words."""
    differing = [name for name, value in made_of.items() if before.get(name) != value]
    files = {"input_files_sha256": "the input files have changed", "vocabulary_sha256": "the vocabulary has changed"}
    return [files.get(name) or f"--{name} was {before.get(name)}" for name in differing]


def _prepare_scratch(folders: Folders, settings: Settings, made_of: dict[str, Any]) -> None:
    note = folders.root / "made_of.json"
    if note.is_file():
        before = json.loads(note.read_text("utf-8"))
        if before == made_of:
            say(f"going on where the last run stopped: {folders.root}")
            return
        say(
            f"the unfinished run there was another ({', '.join(_changes(before, made_of))}): starting from the beginning"
        )
        for path in folders.root.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
        note.unlink()
    vocabulary = make_vocabulary(settings, folders.vocabulary)
    path = Path(settings.vocab_file)
    if is_entry_list(path) and is_piece_list(path):
        say(
            f"--vocab_file {path}: pieces of SentencePiece; its .model file, if you have it, cuts words exactly as trained"
        )
    separator_id(vocabulary, settings)
    write_atomically(note, json.dumps(made_of).encode())


@contextmanager
def _locked(scratch: Path) -> Iterator[None]:
    """One run at a time; the lock ends with the process."""
    import fcntl

    scratch.mkdir(parents=True, exist_ok=True)
    with (scratch / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{scratch}: another run is at work there; wait for it, or give another --name") from None
        yield


def _say_tokens(store: TokenStore, settings: Settings) -> None:
    counts = store.counts
    if not counts["documents"]:
        raise UserError(f"--metadata_files {' '.join(settings.metadata_files)}: the listed files hold no text")
    say(f"{counts['documents']:,} documents, {counts['sentences']:,} sentences, {counts['tokens']:,} tokens")
    if settings.pairs and 1 in counts["passes"]:
        say(
            "a pass holds a single document, so its random next sentences come from the same one; raise --split_num, or pass "
            "--multiple_docs_in_single_file when files hold several"
        )


def _say_what_has_no_effect(settings: Settings, given: dict[str, Any]) -> None:
    if not settings.single_sentence_per_line or given["spacy_model"] != "en_core_web_sm":
        say(f"--spacy_model {given['spacy_model']}: no effect; sentences are found without spaCy")
    if given.get("buffer_size", 1e6) != 1e6:
        say("--buffer_size: no effect; the whole text is shuffled in bounded memory")
    if not FORMS[settings.form].pairs and given.get("split_num", 1000) not in (None, 1000):
        say("--split_num: no effect without sentence pairs")


if __name__ == "__main__":
    main()
