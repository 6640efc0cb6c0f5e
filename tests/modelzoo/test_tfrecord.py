"""Framing: what is written follows the format's definition, and no damage passes."""

import gzip
import struct
import tracemalloc

import pytest
from record_files import bitwise_crc32c

from headrace.errors import InputError
from headrace.modelzoo.records.tfrecord import (
    frame,
    is_gzip,
    masked_crc,
    read_at,
    read_tfrecords,
    record_offsets,
    write_tfrecords,
)

PAYLOADS = [bytes([k]) * (50 + 7 * k) for k in range(10)]


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "good.tfrecords"
    assert write_tfrecords(path, iter(PAYLOADS)) == 10
    return path


def read(path):
    """The records that are delivered, and the message of the error behind them."""
    found = []
    try:
        for record in read_tfrecords(path):
            found.append(record.payload)
    except InputError as error:
        return found, str(error)
    return found, None


def test_bytes_follow_the_definition(good):
    """A second implementation of framing and checksum, from the format's definition."""
    expected = b""
    for payload in PAYLOADS:
        length = struct.pack("<Q", len(payload))
        expected += length + struct.pack("<I", masked(bitwise_crc32c(length)))
        expected += payload + struct.pack("<I", masked(bitwise_crc32c(payload)))
    assert good.read_bytes() == expected
    assert bitwise_crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert masked_crc(b"123456789") == masked(0xE3069283)


def test_reads_back(good):
    assert read(good) == (PAYLOADS, None)
    assert [(record.number, record.offset) for record in read_tfrecords(good)][:2] == [(0, 0), (1, 66)]


def test_gzip_by_magic_bytes(tmp_path, good):
    packed = tmp_path / "named.tfrecords"
    packed.write_bytes(gzip.compress(good.read_bytes()))
    assert read(packed) == (PAYLOADS, None)
    written = tmp_path / "written.tfrecords.gz"
    write_tfrecords(written, PAYLOADS)
    assert is_gzip(written) and gzip.decompress(written.read_bytes()) == good.read_bytes()
    cut = tmp_path / "cut.tfrecords"
    cut.write_bytes(written.read_bytes()[:-10])
    found, error = read(cut)
    assert found == PAYLOADS[: len(found)] and "gzip stream is damaged" in str(error)


def test_a_length_that_looks_like_gzip_is_none(tmp_path):
    path = tmp_path / "large.tfrecords"
    write_tfrecords(path, [bytes(0x088B1F)])
    assert path.read_bytes().startswith(b"\x1f\x8b\x08") and not is_gzip(path)
    assert [len(record.payload) for record in read_tfrecords(path)] == [0x088B1F]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "num_good", "words"),
    [
        (lambda data, at: data[: at + 30], 6, "the file ends after 30 of its 108 bytes"),
        (lambda data, at: data[: at + 106], 6, "the file ends after 106 of its 108 bytes"),
        (lambda data, at: data[: at + 5], 6, "the file ends after 5 of the 12 bytes of its header"),
        (lambda data, at: flipped(data, at + 105), 6, "the checksum of its payload does not fit"),
        (lambda data, at: flipped(data, at + 40), 6, "the checksum of its payload does not fit"),
        (lambda data, at: flipped(data, at + 9), 6, "the checksum of its length does not fit"),
        (lambda data, at: flipped(data, at + 1), 6, "the checksum of its length does not fit"),
        (lambda data, at: flipped(data, at + 7), 6, "the checksum of its length does not fit"),
        (lambda data, at: data + b"abc", 10, "the file ends after 3 of the 12 bytes of its header"),
        (lambda data, at: b"It is a truth universally acknowledged\n" * 9, 0, "is this a TFRecord file"),
    ],
)
def test_damage(good, damage, num_good, words):
    at = int(record_offsets(good)[6])
    good.write_bytes(damage(good.read_bytes(), at))
    found, error = read(good)
    assert found == PAYLOADS[:num_good]
    place = {6: at, 10: int(sum(len(frame(payload)) for payload in PAYLOADS)), 0: 0}[num_good]
    assert f"{good}: record {num_good} at byte {place:,} is damaged" in str(error) and words in str(error)
    with pytest.raises(InputError, match="is damaged"):
        record_offsets(good)


@pytest.mark.parametrize("packed", [False, True])
def test_huge_length_allocates_nothing(tmp_path, packed):
    length = struct.pack("<Q", 1 << 60)
    data = frame(b"first") + length + struct.pack("<I", masked_crc(length)) + bytes(1000)
    path = tmp_path / "huge.tfrecords"
    path.write_bytes(gzip.compress(data) if packed else data)
    tracemalloc.start()
    found, error = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found == [b"first"] and "it claims 1,152,921,504,606,846,976 bytes" in str(error)
    assert peak < 8 << 20


def test_large_length_beyond_the_end_allocates_nothing(tmp_path):
    length = struct.pack("<Q", 200 << 20)
    path = tmp_path / "large.tfrecords"
    path.write_bytes(length + struct.pack("<I", masked_crc(length)) + bytes(1000))
    tracemalloc.start()
    _, error = read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "the file ends after 1,012 of its" in str(error) and peak < 8 << 20


def test_offsets_without_payloads(good):
    assert record_offsets(good, check_payloads=False).tolist() == record_offsets(good).tolist()
    data = good.read_bytes()
    good.write_bytes(data[:-1])
    with pytest.raises(InputError, match=r"record 9 at byte .* the file ends after"):
        record_offsets(good, check_payloads=False)
    good.write_bytes(flipped(data, 40))
    offsets = record_offsets(good, check_payloads=False)
    with good.open("rb") as file:
        assert read_at(good, file.fileno(), offsets, 3) == PAYLOADS[3]
        with pytest.raises(InputError, match="record 0 at byte 0 is damaged: the checksum of its payload"):
            read_at(good, file.fileno(), offsets, 0)


def test_nothing_is_left_of_an_interrupted_file(tmp_path):
    def examples():
        yield b"one"
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_tfrecords(tmp_path / "a.tfrecords", examples())
    assert not list(tmp_path.iterdir())


def test_no_records(tmp_path):
    path = tmp_path / "none.tfrecords"
    assert write_tfrecords(path, []) == 0
    assert read(path) == ([], None) and record_offsets(path).tolist() == [0]
