"""Runs `headrace` commands in forked processes, because importing torch anew would cost each of them seconds.

    {"arguments": [...], "folder": ..., "log": ..., ...} lines in  ->  a line with the pid, then a line with the status

A forked command is a session of its own, writes to files and is killed when it hangs. The device's speed, which takes a
second to measure, is known before the fork; with one thread (OMP_NUM_THREADS=1) torch is safe to fork.
"""

import gc
import importlib
import json
import os
import resource
import signal
import sys
import time

LIMIT_S = 300


def serve() -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    for module in (
        "torch.utils.tensorboard",
        "transformers.models.bert.modeling_bert",
        "headrace.cli.commands",
        "headrace.cli.stages",
        "headrace.report.page",
    ):
        importlib.import_module(module)
    from headrace.planning.probe import measured_gemm_flops

    measured_gemm_flops("cpu", torch.float32)
    gc.freeze()  # else every child walks, and so copies, all of torch when it ends
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            sys.exit(command(job))
        while os.getsid(pid) != pid:
            time.sleep(0.0001)
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def command(job: dict) -> int | str | None:
    os.setsid()
    signal.alarm(LIMIT_S)
    os.chdir(job["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, suffix in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{job['log']}.{suffix}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if "largest_file_bytes" in job:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["largest_file_bytes"], resource.RLIM_INFINITY))
    for path, value in job.get("constants", {}).items():
        module, _, name = path.rpartition(".")
        setattr(importlib.import_module(module), name, value)
    sys.argv = ["headrace", *job["arguments"]]
    from headrace.cli import main

    try:
        main()
    except SystemExit as stop:
        return stop.code
    return 0


if __name__ == "__main__":
    serve()
