"""The first stage, apart from the others because it needs neither torch nor their seconds of import."""

from headrace.params import Params, dump_params
from headrace.run_folder import RunFolder
from headrace.text.prepare import prepare
from headrace.text.tokens import write_atomically


def open_run(params: Params) -> RunFolder:
    """The run's folder, writable, with the resolved params in it."""
    run = RunFolder(params.run.folder)
    run.create()
    write_atomically(run.params, dump_params(params).encode())
    return run


def prepare_stage(params: Params) -> None:
    prepare(params, open_run(params))
