"""Files that cannot be read in any order are unpacked once, so that records can be shuffled over the whole set."""

import gzip
import os
import shutil
import tempfile
import weakref
import zlib
from pathlib import Path

from headrace.errors import InputError, UserError
from headrace.modelzoo.records.tfrecord import read_tfrecords

_CHUNK_BYTES = 1 << 20


class Unpacked:
    """A file in a temporary folder, deleted when the process that made it lets it go or ends."""

    def __init__(self, folder: Path | None, name: str):
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-records-", dir=folder))
        self.path = self.folder / name
        weakref.finalize(self, _delete, self.folder, os.getpid())

    def __reduce__(self):  # a copy in a worker only reads
        return _reopen, (self.folder, self.path)


def _reopen(folder: Path, path: Path) -> Unpacked:
    made = Unpacked.__new__(Unpacked)
    made.folder, made.path = folder, path
    return made


def _delete(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has the same object
        shutil.rmtree(folder, ignore_errors=True)


def unpack_gzip(path: Path, folder: Path | None) -> Unpacked:
    """A gzip file uncompressed into a temporary folder below `folder` (None: the system's), a block at a time.

    Raises InputError naming the record at which the stream is damaged, UserError when the folder's disk is full."""
    unpacked = Unpacked(folder, path.name)
    try:
        with unpacked.path.open("wb") as out, gzip.open(path) as file:
            while block := file.read1(_CHUNK_BYTES):
                out.write(block)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        for _ in read_tfrecords(path):  # raises at the record where it breaks
            pass
        raise InputError(f"{path}: the gzip stream is damaged behind the last record ({error})") from None
    except OSError as error:
        raise UserError(
            f"{path}: cannot be unpacked into {unpacked.folder} ({error.strerror or error}); free space there, or set "
            f"TMPDIR to a larger disk"
        ) from None
    return unpacked
