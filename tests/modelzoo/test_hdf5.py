"""GPT records in HDF5, in each of the shapes the tools write."""

import numpy as np
import pytest
from record_files import gpt_arrays

from headrace.errors import InputError
from headrace.modelzoo.records.record_set import open_records

h5py = pytest.importorskip("h5py", reason="needs h5py: pip install 'headrace[modelzoo]'")


def stacked(arrays):
    return np.stack([arrays["input_ids"], arrays["input_mask"], arrays["labels"]], 1).astype(np.int32)


@pytest.mark.parametrize("chunks", [None, True, (1, 3, 24), (16, 1, 24)])
def test_reads_back(tmp_path, chunks):
    arrays = gpt_arrays(70)
    data = stacked(arrays)
    for k, part in enumerate(np.split(data, [40])):
        with h5py.File(tmp_path / f"data-{k}.h5", "w") as file:
            file.attrs["n_examples"] = len(part)
            file.create_dataset("data", data=part, chunks=chunks, compression="gzip" if chunks else None)
    (tmp_path / "unpacked").mkdir()
    records = open_records(tmp_path, max_sequence_length=24, unpack_folder=tmp_path / "unpacked")
    assert records.layout.name == "GPT" and len(records) == 70
    order = np.random.default_rng(0).permutation(70)
    for name, values in records.read(order).items():
        assert values.dtype == np.int64 and np.array_equal(values, arrays[name][order])
    is_unpacked = chunks is True or (bool(chunks) and chunks[0] > 1)
    assert bool(list((tmp_path / "unpacked").iterdir())) == is_unpacked
    del records
    assert not list((tmp_path / "unpacked").iterdir())


def test_a_dataset_a_record(tmp_path):
    arrays = gpt_arrays(5)
    with h5py.File(tmp_path / "data.h5", "w") as file:
        file.attrs["n_examples"] = 5
        for k, record in enumerate(stacked(arrays)):
            file.create_dataset(f"example_{k}", data=record)
    records = open_records(tmp_path)
    assert np.array_equal(records.read(np.arange(5))["labels"], arrays["labels"])


def test_what_is_refused(tmp_path):
    path = tmp_path / "data.h5"
    path.write_bytes(b"no such file format")
    with pytest.raises(InputError, match=r"data.h5: is no whole HDF5 file"):
        open_records(tmp_path)
    with h5py.File(path, "w") as file:
        file.create_dataset("text", data=np.zeros(3))
    with pytest.raises(InputError, match="holds text; allowed is a dataset `data`"):
        open_records(tmp_path)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=np.zeros((5, 2, 24), np.int32))
    with pytest.raises(InputError, match=r"records have shape \(2, 24\) of int32"):
        open_records(tmp_path)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=np.zeros((0, 3, 24), np.int32))
    with pytest.raises(InputError, match="no file holds a record"):
        open_records(tmp_path)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=stacked(gpt_arrays(5)))
    with pytest.raises(InputError, match="max_sequence_length 24 against 32"):
        open_records(tmp_path, max_sequence_length=32)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputError, match="is no whole HDF5 file"):
        open_records(tmp_path)
