"""The probe: plausible rates, a cache that is read back, nothing left behind."""

import torch

from headrace.optim import Adafactor, AdamW
from headrace.planning.device import Precision
from headrace.planning.probe import cache_machine, cached_machine, probe, update_rate

CPU = Precision(torch.device("cpu"), None)


def test_probe_and_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "run" / "store"
    folder.parent.mkdir()
    assert cached_machine(folder, AdamW(), CPU) is None
    machine = probe(folder, AdamW(), CPU, disk_bytes=16 << 20, width=128)
    assert machine.measured
    rates = (machine.flops, machine.read_bytes_per_s, machine.write_bytes_per_s, machine.update_parameters_per_s)
    assert min(rates) > 1e6
    assert not folder.exists()
    cache_machine(machine, folder, AdamW(), CPU)
    assert cached_machine(folder, AdamW(), CPU) == machine
    assert cached_machine(folder, Adafactor(), CPU) is None
    (tmp_path / "cache" / "headrace" / "machine.json").write_text("{ cut sho")
    assert cached_machine(folder, AdamW(), CPU) is None
    cache_machine(machine, folder, AdamW(), CPU)  # is no reason to stop


def test_rules_that_need_whole_parameters_are_timed_too():
    assert update_rate(Adafactor(), num_parameters=1 << 14) > 1e5
