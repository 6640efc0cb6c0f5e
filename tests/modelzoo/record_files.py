"""Records made from a seed, a second implementation of what the files hold, and where other programs' files may lie."""

from pathlib import Path

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from headrace.modelzoo.records.example import encode_example
from headrace.modelzoo.records.tfrecord import write_tfrecords

THIRD_PARTY = Path(__file__).resolve().parents[3] / "shared" / "tfrecords_thirdparty"
VOCABULARY_SIZE = 1000
CLS, SEP, MASK = 2, 3, 4


def bert_arrays(count: int, sequence: int = 24, predictions: int = 4, *, seed: int = 0) -> dict[str, np.ndarray]:
    """The columns of sentence-pair records with static masks, lengths from 6 to `sequence`."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(6, sequence + 1, count)
    slots = np.arange(sequence)
    mask = (slots < lengths[:, None]).astype(np.int64)
    ids = draw.integers(5, VOCABULARY_SIZE, (count, sequence)) * mask
    ids[:, 0] = CLS
    positions = np.zeros((count, predictions), np.int64)
    weights = np.zeros((count, predictions), np.float32)
    targets = np.zeros((count, predictions), np.int64)
    for k, length in enumerate(lengths.tolist()):
        n = int(draw.integers(1, predictions + 1))
        positions[k, :n] = np.sort(draw.choice(np.arange(1, length), n, replace=False))
        weights[k, :n] = 1
        targets[k, :n] = draw.integers(5, VOCABULARY_SIZE, n)
        ids[k, positions[k, :n]] = MASK
    return {
        "input_ids": ids,
        "input_mask": mask,
        "segment_ids": (slots >= lengths[:, None] // 2).astype(np.int64) * mask,
        "masked_lm_positions": positions,
        "masked_lm_ids": targets,
        "masked_lm_weights": weights,
        "next_sentence_labels": draw.integers(0, 2, (count, 1)),
    }


def gpt_arrays(count: int, sequence: int = 24, *, seed: int = 0) -> dict[str, np.ndarray]:
    """The columns of GPT records; labels count in one stretch of each, which may begin behind a prompt."""
    draw = np.random.default_rng(seed)
    tokens = draw.integers(5, VOCABULARY_SIZE, (count, sequence + 1))
    slots = np.arange(sequence)
    starts, stops = draw.integers(0, 4, count), draw.integers(5, sequence + 1, count)
    mask = (slots >= starts[:, None]) & (slots < stops[:, None])
    return {"input_ids": tokens[:, :-1], "input_mask": mask.astype(np.int64), "labels": tokens[:, 1:]}


def payloads(arrays: dict[str, np.ndarray]) -> list[bytes]:
    count = len(next(iter(arrays.values())))
    return [encode_example({name: values[k] for name, values in arrays.items()}) for k in range(count)]


def write(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tfrecords(path, payloads(arrays))
    return path


def bitwise_crc32c(data: bytes) -> int:
    """CRC-32C by its definition, a bit at a time."""
    crc = 0xFFFF_FFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F6_3B78 if crc & 1 else 0)
    return crc ^ 0xFFFF_FFFF


def protobuf_messages():
    """The classes Example and SequenceExample of google.protobuf, from a description of the messages made here."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="tensorflow", syntax="proto3")
    types = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, str, bool]):
        made = file.message_type.add(name=name)
        for field, number, kind, of, repeated in fields:
            label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
            made.field.add(
                name=field, number=number, type=kind, label=label, type_name=f".tensorflow.{of}" if of else None
            )
        return made

    def string_map(name: str, field: str, value: str) -> None:
        made = message(name, (field, 1, types.TYPE_MESSAGE, f"{name}.Entry", True))
        entry = made.nested_type.add(name="Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=types.TYPE_STRING, label=types.LABEL_OPTIONAL)
        of = f".tensorflow.{value}"
        entry.field.add(name="value", number=2, type=types.TYPE_MESSAGE, label=types.LABEL_OPTIONAL, type_name=of)

    message("BytesList", ("value", 1, types.TYPE_BYTES, "", True))
    message("FloatList", ("value", 1, types.TYPE_FLOAT, "", True))
    message("Int64List", ("value", 1, types.TYPE_INT64, "", True))
    feature = message(
        "Feature",
        ("bytes_list", 1, types.TYPE_MESSAGE, "BytesList", False),
        ("float_list", 2, types.TYPE_MESSAGE, "FloatList", False),
        ("int64_list", 3, types.TYPE_MESSAGE, "Int64List", False),
    )
    feature.oneof_decl.add(name="kind")
    for field in feature.field:
        field.oneof_index = 0
    message("FeatureList", ("feature", 1, types.TYPE_MESSAGE, "Feature", True))
    string_map("Features", "feature", "Feature")
    string_map("FeatureLists", "feature_list", "FeatureList")
    message("Example", ("features", 1, types.TYPE_MESSAGE, "Features", False))
    message(
        "SequenceExample",
        ("context", 1, types.TYPE_MESSAGE, "Features", False),
        ("feature_lists", 2, types.TYPE_MESSAGE, "FeatureLists", False),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"tensorflow.{name}"))
        for name in ("Example", "SequenceExample")
    ]
