"""The probe: plausible rates, a cache that is read back, nothing left behind."""

import torch

from headrace.optim import Adafactor, AdamW
from headrace.planning import probe as probe_module
from headrace.planning.device import Precision
from headrace.planning.probe import cache_machine, cached_machine, probe, update_rate

CPU = Precision(torch.device("cpu"), None)


def test_probe_and_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(probe_module, "DISK_BYTES", 16 << 20)
    monkeypatch.setattr(probe_module, "training_flops_rate", lambda precision: 1e9)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "run" / "store"
    folder.parent.mkdir()
    assert cached_machine(folder, AdamW(), CPU) is None
    machine = probe(folder, AdamW(), CPU)
    assert machine.measured
    assert min(machine.read_bytes_per_s, machine.write_bytes_per_s, machine.update_parameters_per_s) > 1e6
    assert not folder.exists()
    cache_machine(machine, folder, AdamW(), CPU)
    assert cached_machine(folder, AdamW(), CPU) == machine
    assert cached_machine(folder, Adafactor(), CPU) is None
    (tmp_path / "cache" / "headrace" / "machine.json").write_text("{ cut sho")
    assert cached_machine(folder, AdamW(), CPU) is None
    cache_machine(machine, folder, AdamW(), CPU)  # is no reason to stop


def test_rules_that_need_whole_parameters_are_timed_too():
    assert update_rate(Adafactor(), num_parameters=1 << 14) > 1e5


def test_flops_rate():
    assert probe_module.training_flops_rate(CPU, width=128, tokens=64) > 1e7
