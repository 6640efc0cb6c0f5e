import bz2
import gzip
import lzma
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
import zstandard

from headrace.errors import InputError, UserError
from headrace.text import files
from headrace.text.encodings import detect_encoding
from headrace.text.files import Line, expand_paths, iter_lines, open_bytes

SHARED = Path(__file__).parents[2].parent / "shared"
JAPANESE = "吾輩は猫である。名前はまだ無い。\nどこで生れたかとんと見当がつかぬ。「ニャー」と泣いていた。\n"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def texts(path: Path, **options) -> list[str]:
    lines = list(iter_lines(path, **options))
    assert all(line.ends for line in lines)
    assert [line.number for line in lines] == sorted({line.number for line in lines})
    return [line.text for line in lines]


# --- which files


def test_expand_paths(tmp_path: Path):
    for name in ("b/2.txt", "b/1.txt", "b/.hidden", "b/.git/x", "a.txt", "c[1].txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    a, one, two, c = (tmp_path / name for name in ("a.txt", "b/1.txt", "b/2.txt", "c[1].txt"))
    assert expand_paths(tmp_path) == [a, one, two, c]
    assert expand_paths(str(a)) == [a]
    assert expand_paths([tmp_path / "b", a, one]) == [a, one, two]
    assert expand_paths(str(tmp_path / "**/*.txt")) == [a, one, two, c]
    assert expand_paths(c) == [c]


@pytest.mark.parametrize("given", ["missing.txt", "*.gz", "empty", []])
def test_nothing_to_read_is_said(tmp_path: Path, given):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match=r"matches no file; .* holds empty|without any file|empty; name a file"):
        expand_paths([] if given == [] else tmp_path / given)


# --- compression


def zstd_frames(*parts: bytes) -> bytes:
    return b"".join(zstandard.ZstdCompressor(write_content_size=False).compress(part) for part in parts)


COMPRESS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstd_frames}
LONG = "".join(f"{number} 行目の文章です。{number * 7919 % 10007}\n" for number in range(40_000))


@pytest.mark.parametrize("kind", COMPRESS)
def test_compression_is_seen_in_the_bytes_not_the_name(tmp_path: Path, kind: str):
    half = len(LONG.encode()) // 2 + 1  # inside a character
    data = LONG.encode()
    several = COMPRESS[kind](data[:half]) + COMPRESS[kind](b"") + COMPRESS[kind](data[half:])
    path = write(tmp_path / "text.txt", several)

    with open_bytes(path) as reader:
        assert reader.compression == kind

    assert "\n".join(texts(path)) + "\n" == LONG


@pytest.mark.parametrize("kind", COMPRESS)
def test_truncated_data_names_the_line_after_those_delivered(tmp_path: Path, kind: str):
    whole, expected = COMPRESS[kind](LONG.encode()), LONG.split("\n")
    for num_bytes in (len(whole) - 1, len(whole) * 2 // 3):
        path = write(tmp_path / f"cut.{kind}", whole[:num_bytes])
        read = []
        with pytest.raises(InputError, match=rf"cut\.{kind}:\d+: the {kind} data stops in the middle") as caught:
            for line in iter_lines(path):
                read.append(line.text)
        assert read == expected[: len(read)]
        assert int(str(caught.value).split(":")[1]) == len(read) + 1
        if kind != "bzip2":  # its block of 900 kB is all or nothing
            assert len(read) > 0.4 * len(expected) * num_bytes / len(whole)


@pytest.mark.parametrize("kind", COMPRESS)
def test_damaged_data_is_an_input_error(tmp_path: Path, kind: str):
    data = bytearray(COMPRESS[kind](LONG.encode()))
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(64)
    with pytest.raises(InputError, match=rf"x:\d+: the {kind} data"):
        list(iter_lines(write(tmp_path / "x", bytes(data)), errors="replace"))


def test_zstd_missing_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "x.zst", zstd_frames(b"a\n"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UserError, match=r"headrace\[zstd\]"):
        texts(path)


def test_missing_file(tmp_path: Path):
    with pytest.raises(InputError, match="cannot be opened"):
        texts(tmp_path / "none")


# --- encodings


@pytest.mark.parametrize(
    "encoding",
    ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "cp932", "euc_jp", "iso2022_jp"],
)
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_encodings_are_detected(tmp_path: Path, encoding: str, newline: str):
    path = write(tmp_path / "x", JAPANESE.replace("\n", newline).encode(encoding))
    assert texts(path) == JAPANESE.splitlines()
    assert texts(path, encoding="utf-16" if encoding == "utf-16" else encoding) == JAPANESE.splitlines()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "utf-8"),
        (b"plain\n", "utf-8"),
        ("ascii first\n".encode("utf-16-le"), "utf-16-le"),
        (b"abc\0def\n", "utf-8"),
        (JAPANESE.encode()[:40] + b"\xff" + JAPANESE.encode()[40:], "utf-8"),
        ((b"header\n" * 20_000) + JAPANESE.encode("cp932"), "cp932"),
        ("①②は丸数字である。これはどうか。\n".encode("euc_jis_2004"), "euc_jis_2004"),
        (
            "Un été à Paris, où tout était très élégant.\n".encode("latin-1"),
            "utf-8",
        ),  # invalid there, so refused by line
        (bytes(range(256)) * 8, None),
    ],
)
def test_detection(data: bytes, expected: str | None):
    assert detect_encoding(data) == expected


def test_shift_jis_originals():
    folder = SHARED / "data" / "sjis"
    if not folder.exists():
        pytest.skip(f"{folder} is absent")
    for path in sorted(folder.glob("*.txt")):
        expected = path.read_bytes().decode("cp932").replace("\r\n", "\n").removesuffix("\n").split("\n")
        assert texts(path) == expected


def test_binary_and_unknown_encodings_are_refused(tmp_path: Path):
    path = write(tmp_path / "x.bin", bytes(range(256)) * 8)
    with pytest.raises(InputError, match="does not look like text"):
        texts(path)
    for name in ("utf-9", "base64"):
        with pytest.raises(UserError, match=rf"text\.encoding = {name}"):
            texts(path, encoding=name)
    with pytest.raises(UserError, match="ignore is not allowed"):
        texts(path, errors="ignore")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le", "cp932", "euc_jp", "iso2022_jp"])
def test_characters_across_read_boundaries(tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch):
    path = write(tmp_path / "x", JAPANESE.encode(encoding))
    for num_bytes in (1, 2, 3, 5, 7):
        monkeypatch.setattr(files.ByteReader.read, "__defaults__", (num_bytes,))
        monkeypatch.setattr(files, "DETECTION_BYTES", num_bytes)
        assert texts(path, encoding=encoding) == JAPANESE.splitlines()


# --- lines


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\xef\xbb\xbf", []),
        (b"\n", [""]),
        (b"\n\n \n", ["", "", " "]),
        (b"no final newline", ["no final newline"]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\nb\r\r\nc\rd\r\n", ["a", "b\r", "c\rd"]),
        (b"a\r", ["a"]),
        ("\ufeffa\nb\u2028c\u2029d\x0be\x0cf\x85g\x1ch\n".encode(), ["a", "b\u2028c\u2029d\x0be\x0cf\ufffdg\x1ch"]),
    ],
)
def test_lines_end_at_newline_only(tmp_path: Path, data: bytes, expected: list[str]):
    expected = [text.replace("\ufffd", "\x85") for text in expected]
    assert texts(write(tmp_path / "x", data)) == expected


def test_nul_is_removed_and_counted(tmp_path: Path):
    counts = Counter()
    assert texts(write(tmp_path / "x", b"a\0b\n\0\0\nc\n"), counts=counts) == ["ab", "", "c"]
    assert counts == {"NUL characters removed": 3}


BROKEN = {
    "utf-8": ("良い\n".encode() + "悪".encode() + b"\xe3\x81x\n" + "良い\n".encode(), 3),
    "cp932": ("良いです\n".encode("cp932") + "悪".encode("cp932") + b"\x82\n" + "良い\n".encode("cp932"), 2),
    "euc_jp": ("良いです\n".encode("euc_jp") + "悪".encode("euc_jp") + b"\xa4\n" + "良い\n".encode("euc_jp"), 2),
    "utf-16-le": ("良い\n悪".encode("utf-16-le") + b"\x00\xd8" + "x\n良い\n".encode("utf-16-le"), 2),
}


@pytest.mark.parametrize("encoding", BROKEN)
def test_invalid_bytes(tmp_path: Path, encoding: str):
    data, offset = BROKEN[encoding]
    path = write(tmp_path / "x", data)
    with pytest.raises(InputError, match=rf"x:2: byte {offset} of the line .* is not valid {encoding}"):
        texts(path, encoding=encoding)
    counts = Counter()
    replaced = texts(path, encoding=encoding, errors="replace", counts=counts)
    assert len(replaced) == 3 and replaced[1].startswith("悪\ufffd") and replaced[2] == "良い"
    assert counts == {"lines with invalid bytes replaced": 1}
    counts = Counter()
    kept = list(iter_lines(path, encoding=encoding, errors="skip", counts=counts))
    assert [line.number for line in kept] == [1, 3]
    assert counts == {"lines with invalid bytes skipped": 1}


def test_a_cut_last_character_is_invalid(tmp_path: Path):
    for encoding, data in (("utf-8", "あ".encode()[:2]), ("utf-16-le", b"B0B"), ("cp932", b"\x82")):
        with pytest.raises(InputError, match=r"x:1: byte"):
            texts(write(tmp_path / "x", data), encoding=encoding)


# --- long lines


def joined(path: Path, **options) -> list[str]:
    result, parts = [], []
    for line in iter_lines(path, **options):
        assert len(line.text) <= files.PIECE_CHARACTERS
        assert line.number == len(result) + 1
        parts.append(line.text)
        if line.ends:
            result.append("".join(parts))
            parts = []
    assert not parts
    return result


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp932"])
def test_long_lines_come_in_pieces_and_lose_nothing(tmp_path: Path, encoding: str):
    lines = ["短い", "猫が。" * 900_000, "犬" * 1_500_000, "", "a b " * 300_000 + "\r", "終"]
    path = write(tmp_path / "x", "\r\n".join(lines).encode(encoding))
    assert joined(path) == lines
    pieces = [line.text for line in iter_lines(path) if line.number == 2 and not line.ends]
    assert len(pieces) >= 2 and all(piece.endswith("。") for piece in pieces)


@pytest.mark.parametrize("num_bytes", [8, 9, 10, 11, 12])
def test_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_bytes: int):
    monkeypatch.setattr(files, "PIECE_CHARACTERS", num_bytes)
    lines = ["あいう。えおかきくけこ\r", "aあ😀b" * 9, "x" * num_bytes, "\r" * 30, "ok"]
    for chunk_bytes in (3, 7, 64):
        monkeypatch.setattr(files.ByteReader.read, "__defaults__", (chunk_bytes,))
        monkeypatch.setattr(files, "DETECTION_BYTES", chunk_bytes)
        assert joined(write(tmp_path / "x", "\r\n".join(lines).encode()), encoding="utf-8") == lines


def test_invalid_bytes_in_a_long_line(tmp_path: Path):
    start = "猫が。" * 800_000
    path = write(tmp_path / "x", start.encode() + b"\xff" + start.encode() + "\n次".encode())
    with pytest.raises(InputError, match=rf"x:1: byte {len(start.encode())} of the line"):
        list(iter_lines(path))
    assert joined(path, errors="replace") == [start + "\ufffd" + start, "次"]
    kept = joined(path, errors="skip")
    assert kept[1] == "次" and 2 * len(start) - 700_000 < len(kept[0]) < 2 * len(start)


def test_a_200_mb_line_keeps_memory_bounded(tmp_path: Path):
    path = tmp_path / "x"
    with path.open("wb") as file:
        for _ in range(200):
            file.write(b"0123456789abcde " * 62_500)
        file.write(b"\nend")
    tracemalloc.start()
    num_characters, last = 0, Line(0, "", True)
    for line in iter_lines(path):
        num_characters, last = num_characters + len(line.text), line
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (num_characters, last) == (200_000_003, Line(2, "end", True))
    assert peak_bytes < 24 << 20


def test_a_bomb_keeps_memory_bounded(tmp_path: Path):
    """256 MiB of one character in a few KiB of zstd, in a process of its own: zstandard's memory is not Python's."""
    path = tmp_path / "x.zst"
    compressor = zstandard.ZstdCompressor(level=1).compressobj()
    path.write_bytes(b"".join(compressor.compress(b"a" * (1 << 20)) for _ in range(256)) + compressor.flush())
    code = (
        "import sys\nfrom headrace.text.files import iter_lines\n"
        "print(sum(len(line.text) for line in iter_lines(sys.argv[1])))\n"
        "print(*[line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')])"
    )
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    num_characters, peak_kib = map(int, done.stdout.split())
    assert num_characters == 256 << 20
    assert peak_kib < 200 * 1024
