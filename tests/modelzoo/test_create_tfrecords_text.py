"""What becomes of the text: documents, sentences and tokens, beside an independent reading of the script's rules."""

import random
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from make_input import SPECIAL, examples_of, flags, run, unmasked, write_documents, write_vocabulary

from headrace.errors import InputError, UserError
from headrace.modelzoo.create.flags import parse
from headrace.modelzoo.create.inputs import chunks, input_files, separated
from headrace.modelzoo.create.token_store import TokenStore
from headrace.modelzoo.create.vocabulary import make_vocabulary, sentence_cleaner
from headrace.modelzoo.create.wordpiece import save_wordpiece
from headrace.text.vocabulary import open_vocabulary, train_vocabulary

# --- the script's tokenizer, written down again from its documentation, without regard to speed


def basic_words(text: str, strip_accents: bool) -> list[str]:
    kept = "".join(c for c in text if unicodedata.category(c) not in ("Cc", "Cf") and c not in "\0\ufffd")
    spaced = "".join(" " if unicodedata.category(c) == "Zs" else f" {c} " if is_han(ord(c)) else c for c in kept)
    out = []
    for word in spaced.lower().split(" "):
        if strip_accents:
            word = "".join(c for c in unicodedata.normalize("NFD", word) if unicodedata.category(c) != "Mn")
        current = ""
        for c in word:
            if unicodedata.category(c).startswith("P") or (
                c.isascii() and c.isprintable() and not c.isalnum() and c != " "
            ):
                out += [current, c]
                current = ""
            else:
                current += c
        out.append(current)
    return [word for word in " ".join(out).lower().split(" ") if word]


def is_han(code: int) -> bool:
    ranges = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]
    return any(low <= code <= high for low, high in ranges)


def pieces(word: str, entries: set[str]) -> list[str]:
    if len(word) > 200:
        return ["[UNK]"]
    found, start = [], 0
    while start < len(word):
        for stop in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:stop]
            if piece in entries:
                found.append(piece)
                start = stop
                break
        else:
            return ["[UNK]"]
    return found


def reference_tokens(text: str, entries: set[str], strip_accents: bool) -> list[str]:
    return [piece for word in basic_words(text, strip_accents) for piece in pieces(word, entries)]


STRANGE = [
    "Café déjà-vu; naïve ROLE!", "tab\there", "soft\u00adhyphen and zero\u200bwidth", "no\u00a0break\u3000space",
    "line\u2028separator", "ΣΊΣΥΦΟΣ ΟΔΟΣ", "İstanbul", "日本語とEnglish混在。", "パンダのガラス", "a" * 150, "b" * 201,
    "\ufffdbad\0", "$100^2 + <b>`x`~", "“quoted” – dash…", "[MASK] [CLS] is text", "e\u0301 combining", "한국어",
    "\ue000private", "",
]  # fmt: skip


@pytest.mark.parametrize("strip_accents", [False, True])
def test_every_sentence_has_the_scripts_tokens(tmp_path, strip_accents):
    draw = random.Random(5)
    letters = list("abcdeéèñσςοδοσισυφοσistanbuinlovtrxzパンダハンタノガラスか日本語한국\u0307i̇")
    entries = [
        *SPECIAL,
        *".,;!?-$^+<>`~=“”–…[]()'\"",
        *dict.fromkeys(letters),
        *(f"##{each}" for each in dict.fromkeys(letters)),
    ]
    entries += ["the", "##he", "ca", "##fe", "##fé", "mask", "is", "text", "100", "2", "a" * 150]
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("\n".join(dict.fromkeys(entries)) + "\n", "utf-8")
    save_wordpiece(vocab, tmp_path / "folder", True, strip_accents)
    vocabulary = open_vocabulary(tmp_path / "folder")
    more = ["--strip_accents"] if strip_accents else []
    _, settings = parse(["--metadata_files", "x", "--vocab_file", str(vocab), "--do_lower_case", *more])
    clean = sentence_cleaner(settings)
    assert clean is not None
    alphabet = letters + list("  .,-\t\u00a0\u200b\u2028TÉΣ")
    sentences = STRANGE + ["".join(draw.choices(alphabet, k=draw.randint(1, 40))) for _ in range(3000)]
    for sentence in sentences:
        found = [vocabulary.token_text(i) for i in vocabulary.encode_batch([clean(sentence)])[0]]
        assert found == reference_tokens(sentence, set(entries), strip_accents), repr(sentence)


def test_ids_are_line_numbers_and_a_repeated_entry_is_named(tmp_path):
    vocab = write_vocabulary(tmp_path / "vocab.txt", ("\u2028", "", "last"))
    save_wordpiece(vocab, tmp_path / "folder", False, False)
    vocabulary = open_vocabulary(tmp_path / "folder")
    lines = vocab.read_text("utf-8").split("\n")
    assert vocabulary.token_text(lines.index("last")) == "last" and vocabulary.size == len(lines) - 1
    vocab.write_text("\n".join([*SPECIAL, "a", "b", "a"]), "utf-8")
    with pytest.raises(InputError, match=r"vocab.txt:8: 'a' is there twice, first in line 6"):
        save_wordpiece(vocab, tmp_path / "folder", False, False)
    vocab.write_text("a\nb\n", "utf-8")
    with pytest.raises(UserError, match=r"--vocab_file .*: no \[PAD\]"):
        save_wordpiece(vocab, tmp_path / "folder", False, False)


@pytest.mark.parametrize("scores", [True, False])
def test_a_list_of_sentencepiece_pieces_is_read_as_pieces(tmp_path, scores):
    """With scores each sentence has the .model's pieces; ranks alone give nearly the same number of them."""
    import sentencepiece

    draw = random.Random(4)
    words = ["パンダ", "ガラス", "図書館", "私は", "本を", "読んだ", "東京", "の", "学生", "です", "電車で", "行く"]
    lines = ["".join(draw.choices(words, k=draw.randint(2, 8))) + "。" for _ in range(400)]
    with (tmp_path / "m.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=file, vocab_size=55, character_coverage=1.0, minloglevel=2,
            control_symbols=["[PAD]", "[CLS]", "[SEP]", "[MASK]"], unk_piece="[UNK]",
        )  # fmt: skip
    model = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    entries = [(model.id_to_piece(i), model.get_score(i)) for i in range(model.get_piece_size())]
    vocab = tmp_path / "vocab.txt"
    vocab.write_text("".join(f"{piece}\t{score}\n" if scores else f"{piece}\n" for piece, score in entries), "utf-8")
    _, settings = parse(["--metadata_files", "x", "--vocab_file", str(vocab)])
    vocabulary = make_vocabulary(settings, tmp_path / "folder")
    assert sentence_cleaner(settings) is None and vocabulary.size == len(entries)
    found = vocabulary.encode_batch(lines)
    expected = [model.encode(line) for line in lines]
    assert not any(vocabulary.unk_id in ids for ids in found)
    assert [vocabulary.decode(ids) for ids in found] == lines
    if scores:
        assert found == expected
    else:
        assert sum(map(len, found)) == pytest.approx(sum(map(len, expected)), rel=0.1)
    vocab.write_text("".join(f"{piece}\n" for piece, _ in entries if piece != "[MASK]"), "utf-8")
    with pytest.raises(UserError, match=r"pieces of SentencePiece without \[MASK\]"):
        make_vocabulary(settings, tmp_path / "folder")


@pytest.mark.parametrize("separator", ["\n", "---", "\n\n", "\n---\n", "=\n="])
def test_documents_are_those_of_splitting_at_a_newline_and_the_separator(separator):
    draw = random.Random(1)
    for _ in range(300):
        text = "x\n" + "\n".join(draw.choices(["", "a", "bb", "---", "--- c", "=", "="], k=12)) + "\nx"
        expected = [[line for line in part.split("\n") if line] for part in text.split("\n" + separator)]
        found: list[list[str]] = [[]]
        for line in separated(iter(text.split("\n")), separator):
            if line is None:
                found.append([])
            elif line:
                found[-1].append(line)
        assert [each for each in found if each] == [each for each in expected if each], repr(text)


def test_long_documents_continue_in_the_next_chunk(tmp_path, monkeypatch):
    """However documents fall on chunks, the store holds the same documents and sentences."""
    from headrace.modelzoo.create import inputs

    write_documents(tmp_path, 12, sentences=40)
    write_vocabulary(tmp_path / "vocab.txt")
    (tmp_path / "text-3.txt").write_text("\u200b\n" * 300 + "ba ke.\nlo.\n", "utf-8")  # begins without a token
    (tmp_path / "text-5.txt").write_text("\u200b\n" * 300, "utf-8")  # has none
    seen = []
    for size in (10_000_000, 500, 37):
        monkeypatch.setattr(inputs, "CHUNK_CHARACTERS", size)
        seen.append(store_of(tmp_path, tmp_path / f"out-{size}"))
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) == 11 and [2, 1] in [[len(sentence) for sentence in document] or [] for document in seen[0]] + [
        [2, 1]
    ]


def store_of(text: Path, output: Path) -> list[list[bytes]]:
    """The documents as they are in the store of an unfinished run."""
    from headrace.modelzoo import create_tfrecords
    from headrace.modelzoo.create.workers import Folders, Pool

    _, settings = parse(flags(text, "--output_dir", output))
    folders = Folders(output)
    output.mkdir()
    make_vocabulary(settings, folders.vocabulary)
    with Pool(1, folders, settings) as pool:
        create_tfrecords._tokenize(input_files(settings), folders, settings, pool)
    store = TokenStore(folders.store)
    documents = []
    for number in range(store.num_documents):
        first, after = store.document(number)
        places = store.sentence_starts(first, after)
        documents.append([store.tokens(start, stop) for start, stop in pairwise(places)])
        assert store.document_tokens(number) == (places[0], places[-1])
        assert [store.sentence_start(i) for i in range(first, after + 1)] == places
    return documents


def test_sentences_are_found_in_japanese_and_english(tmp_path):
    (tmp_path / "a.txt").write_text("彼は「行く。待て！」と言った。本当だ！\nMr. Smith paid 3.50. Why?\n", "utf-8")
    (tmp_path / "metadata.txt").write_text("a.txt\n")
    _, settings = parse(
        ["--metadata_files", str(tmp_path / "metadata.txt"), "--input_files_prefix", str(tmp_path), "--vocab_file", "x"]
    )
    from headrace.modelzoo.create.tokenize import sentences_of

    (chunk,) = chunks(input_files(settings), settings)
    found = [sentence for piece in chunk.pieces for line in piece.lines for sentence in sentences_of(line, False)]
    assert found == ["彼は「行く。待て！」と言った。", "本当だ！", "Mr. Smith paid 3.50.", "Why?"]


JAPANESE = ["パンダはガラスの部屋で眠る。", "私は図書館で本を読んだ。", "これはペンです。", "デパートで買い物をした。"]


@pytest.mark.parametrize("kind", ["sentencepiece", "folder", "wordpiece"])
def test_japanese_keeps_its_voicing_marks_with_every_kind_of_vocabulary(tmp_path, kind):
    draw = random.Random(3)
    for number in range(4):
        lines = ["".join(draw.choices(JAPANESE, k=2)) for _ in range(40)]
        (tmp_path / f"text-{number}.txt").write_text("\n".join(lines), "utf-8")
    (tmp_path / "metadata.txt").write_text("".join(f"text-{number}.txt\n" for number in range(4)))
    if kind == "wordpiece":
        vocab = tmp_path / "vocab.txt"
        vocab.write_text("\n".join([*SPECIAL, *sorted({c for line in JAPANESE for c in line})]) + "\n", "utf-8")
        with vocab.open("a", encoding="utf-8") as file:
            file.write("".join(f"##{c}\n" for c in sorted({c for line in JAPANESE for c in line})))
    else:
        train_vocabulary(JAPANESE * 30, tmp_path / "trained", kind="unigram", size=41)
        vocab = tmp_path / "trained" / ("sentencepiece.model" if kind == "sentencepiece" else "")
    output = tmp_path / "out"
    run(["--metadata_files", str(tmp_path / "metadata.txt"), "--input_files_prefix", str(tmp_path), "--vocab_file", str(vocab),
         "--output_dir", str(output), "--max_seq_length", "64", "--dupe_factor", "2", "--processes", "1"])  # fmt: skip
    _, settings = parse(["--metadata_files", "x", "--vocab_file", str(vocab)])
    vocabulary = make_vocabulary(settings, tmp_path / "check")
    found = examples_of(output)
    text = "".join(
        vocabulary.decode(row[: int(mask.sum())])
        for row, mask in zip(unmasked(found), found["input_mask"], strict=True)
    )
    text = text.replace(" ", "").replace("##", "")
    assert "パンダ" in text and "ガラス" in text and "デパート" in text
    assert "ハンタ" not in text and "カラス" not in text
