"""What a machine can do, in numbers a plan is made of."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """Rates that training really reaches."""

    flops: float
    """Floating-point operations a second of forward and backward passes."""
    read_bytes_per_s: float
    write_bytes_per_s: float
    update_parameters_per_s: float
    transfer_cpu_s_per_byte: float = 0.0
    """Processor time that moving a byte to or from the disk takes: the system's, which the computation then lacks."""
    cores: int = 1
    measured: bool = False
    link_bytes_per_s: float = 12e9
    """Between host memory and a GPU, one way; measured where there is one, or else half of what PCIe 4.0 x16 promises."""


ASSUMED = Machine(
    flops=70e9,
    read_bytes_per_s=0.85e9,
    write_bytes_per_s=1.5e9,
    update_parameters_per_s=0.3e9,
    transfer_cpu_s_per_byte=0.15e-9,
    cores=2,
)
"""A small box with an SSD: for plans where nothing was measured."""
