"""A tokenizer from elsewhere -> the run's own folder: a Hugging Face folder, a SentencePiece `.model`, a `vocab.txt`.

A loaded tokenizer keeps its own normalisation. Settings given on top run before it and are saved with it; settings
that the format cannot carry are refused.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from headrace.errors import InputError, UserError
from headrace.text.normalization import UnicodeForm, normalizer
from headrace.text.vocabulary.save import add_template, describe, save_fast, written_aside
from headrace.text.vocabulary.sentencepiece_model import BPE, UNKNOWN, read_model, to_tokenizer
from headrace.text.vocabulary.vocabulary import DESCRIPTION_FILE, ROLES, Vocabulary, open_vocabulary

KIND_OF_MODEL = {"Unigram": "unigram", "BPE": "bpe", "WordPiece": "wordpiece", "WordLevel": "word"}


def load_vocabulary(
    path: Path | str,
    folder: Path | str,
    *,
    unicode: UnicodeForm | None = None,
    lowercase: bool = False,
    strip_accents: bool = False,
    causal: bool | None = False,
) -> Vocabulary:
    """Reads the tokenizer at `path`, saves it into `folder` and opens that.

    causal: for a model that goes on with a text, which needs a token that ends texts and no other special token; None: as the
    tokenizer of a folder is, causal where it has no mask token.
    unicode: None leaves the tokenizer's own normalisation alone, as do the other settings when False.
    """
    path, folder = Path(path), Path(folder)
    if not path.exists():
        raise UserError(f"text.vocabulary.load = {path}: no such file or folder")
    if path.resolve() == folder.resolve():
        raise UserError(f"text.vocabulary.load = {path}: is the folder the run writes its tokenizer to")
    settings = {"unicode": unicode or "own", "lowercase": lowercase, "strip_accents": strip_accents}
    steps = normalizer(unicode or "none", lowercase, strip_accents)
    more: dict[str, Any] = {}
    with written_aside(folder) as aside:
        if path.is_dir() and (kind := _kind_of_ours(path)) in ("kmer", "bins"):
            ids, more = _load_ours(path, aside, steps, bool(causal))
        elif path.is_dir():
            kind, ids, own = _load_folder(path, aside, steps, causal)
            settings |= own
        elif path.suffix == ".txt":
            kind, ids = _load_vocab_txt(path, aside, steps, bool(causal))
        elif path.suffix in (".model", ".spm", ".spiece"):
            kind, ids = _load_sentencepiece(path, aside, steps, bool(causal))
        else:
            raise UserError(
                f"text.vocabulary.load = {path}: give a Hugging Face tokenizer folder, a SentencePiece .model "
                "or a BERT vocab.txt"
            )
        describe(aside, kind=kind, ids=ids, source=str(path), more=more, **settings)
    return open_vocabulary(folder)


def _kind_of_ours(path: Path) -> str | None:
    """What a folder of ours says it is; None for others."""
    try:
        return json.loads((path / DESCRIPTION_FILE).read_text(encoding="utf-8"))["kind"]
    except (OSError, ValueError, KeyError):
        return None


def _load_ours(
    path: Path, aside: Path, steps: normalizers.Normalizer | None, causal: bool
) -> tuple[dict[str, int | None], dict[str, Any]]:
    """k-mers and bins, which are more than their tokenizer file says."""
    if steps is not None:
        raise UserError(
            f"text.vocabulary.load = {path}: k-mers and bins take no text.unicode, text.lowercase or text.strip_accents; "
            "leave them out"
        )
    description = open_vocabulary(path).description
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    add_template(tokenizer, "[CLS]", "[SEP]", causal)
    save_fast(tokenizer, {role: f"[{role.upper()}]" for role in ROLES}, aside, causal)
    return description["ids"], {key: description[key] for key in ("kmer", "bins") if key in description}


def _load_folder(
    path: Path, aside: Path, steps: normalizers.Normalizer | None, causal: bool | None
) -> tuple[str, dict[str, int | None], dict[str, Any]]:
    from transformers import AutoTokenizer

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except Exception as error:  # transformers raises many types; whatever it is, the user must hear it in one line
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"text.vocabulary.load = {path}: not a Hugging Face tokenizer folder: {reason}") from error
    ids = {role: getattr(tokenizer, f"{role}_token_id") for role in ROLES}
    if causal is None:
        causal = ids["mask"] is None
    if causal:
        ids = _with_end_of_text(path, tokenizer, ids)
    missing = [role for role, i in ids.items() if i is None and role != "unk"]
    if missing and not causal:
        raise UserError(
            f"text.vocabulary.load = {path}: its tokenizer has no {', '.join(f'{role}_token' for role in missing)}; "
            "masked-LM training needs pad, cls, sep and mask tokens: add them with transformers and save it again"
        )
    if ids["unk"] is None:  # byte-level tokenizers know every text, so this id never occurs
        ids["unk"] = ids["pad"]
    name = type(tokenizer).__name__
    if name == "BertJapaneseTokenizer":
        return "wordpiece_mecab", ids, _save_bert_japanese(path, tokenizer, aside, steps)
    if not tokenizer.is_fast:
        raise UserError(
            f"text.vocabulary.load = {path}: {name} has no fast (tokenizers) form; only fast ones and "
            "BertJapaneseTokenizer with MeCab and WordPiece can be loaded"
        )
    backend: Tokenizer = tokenizer.backend_tokenizer
    if steps is None:
        tokenizer.save_pretrained(str(aside))
    else:
        # Under its own class transformers may build the normalizer anew on loading, so it becomes the general class.
        backend.normalizer = normalizers.Sequence([steps] + ([backend.normalizer] if backend.normalizer else []))
        names = {role: getattr(tokenizer, f"{role}_token") for role in ROLES}
        if causal:
            names["sep"] = tokenizer.convert_ids_to_tokens(ids["sep"])
        save_fast(backend, {role: text for role, text in names.items() if text is not None}, aside, causal)
    return KIND_OF_MODEL[type(backend.model).__name__], ids, {}


def _with_end_of_text(path: Path, tokenizer: Any, ids: dict[str, int | None]) -> dict[str, int | None]:
    """The end-of-text token in every role that is not filled; the mask stays empty, for nothing is masked."""
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else ids["sep"]
    if end is None:
        raise UserError(
            f"text.vocabulary.load = {path}: its tokenizer has neither eos_token nor sep_token; causal-LM training needs "
            "one to end texts: add it with transformers and save it again"
        )
    return {**{role: end if i is None and role != "mask" else i for role, i in ids.items()}, "sep": end}


def _save_bert_japanese(
    path: Path, tokenizer: Any, aside: Path, steps: normalizers.Normalizer | None
) -> dict[str, Any]:
    mecab = tokenizer.mecab_kwargs or {}
    supported = (
        tokenizer.word_tokenizer_type == "mecab"
        and tokenizer.subword_tokenizer_type == "wordpiece"
        and mecab.get("mecab_dic", "unidic_lite") == "unidic_lite"
        and not mecab.get("mecab_option")
    )
    if not supported:
        raise UserError(
            f"text.vocabulary.load = {path}: a BertJapaneseTokenizer with word_tokenizer_type = "
            f"{tokenizer.word_tokenizer_type}, subword_tokenizer_type = {tokenizer.subword_tokenizer_type}, "
            f"mecab_kwargs = {mecab}; only mecab with unidic_lite and wordpiece can be loaded"
        )
    if steps is not None:
        raise UserError(
            f"text.vocabulary.load = {path}: BertJapaneseTokenizer cannot carry other text.unicode, text.lowercase or "
            "text.strip_accents than its own; leave them out"
        )
    tokenizer.save_pretrained(str(aside))
    return {"unicode": "nfkc" if mecab.get("normalize_text", True) else "none", "lowercase": tokenizer.do_lower_case}


def _load_vocab_txt(
    path: Path, aside: Path, steps: normalizers.Normalizer | None, causal: bool
) -> tuple[str, dict[str, int | None]]:
    try:
        entries = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from error
    seen = {text: i for i, text in reversed(list(enumerate(entries)))}
    if len(seen) < len(entries):
        line = next(i for i, text in enumerate(entries) if seen[text] != i)
        raise InputError(
            f"{path}:{line + 1}: {entries[line]!r} is there twice (first in line {seen[entries[line]] + 1})"
        )
    missing = [f"[{role.upper()}]" for role in ROLES if f"[{role.upper()}]" not in seen]
    if missing:
        raise UserError(f"text.vocabulary.load = {path}: not a BERT vocabulary, it has no {', '.join(missing)}")
    tokenizer = Tokenizer(models.WordPiece(seen, unk_token="[UNK]"))
    # BERT's cleaning and its spaces round Han characters; lower case and accents only by our rule, kana stay whole.
    clean = normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False)
    tokenizer.normalizer = normalizers.Sequence([clean] + ([steps] if steps else []))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    names = {role: f"[{role.upper()}]" for role in ROLES}
    tokenizer.add_special_tokens(list(names.values()))
    add_template(tokenizer, "[CLS]", "[SEP]", causal)
    save_fast(tokenizer, names, aside, causal)
    return "wordpiece", {role: seen[text] for role, text in names.items()}


def _load_sentencepiece(
    path: Path, aside: Path, steps: normalizers.Normalizer | None, causal: bool
) -> tuple[str, dict[str, int | None]]:
    model = read_model(path)
    unknown = next(piece.text for piece in model.pieces if piece.type == UNKNOWN)
    names = {"pad": "[PAD]", "unk": unknown, "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = to_tokenizer(model, list(names.values()), steps)
    add_template(tokenizer, "[CLS]", "[SEP]", causal)
    save_fast(tokenizer, names, aside, causal)
    (aside / "sentencepiece.model").write_bytes(path.read_bytes())
    kind = "bpe" if model.model_type == BPE else "unigram"
    return kind, {role: tokenizer.get_vocab()[text] for role, text in names.items()}
