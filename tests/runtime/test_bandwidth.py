"""What the bandwidth job prints."""

from __future__ import annotations

from slurm_hadar.runtime.bandwidth import Figures, Worker, section


def test_the_section_names_what_was_measured() -> None:
    workers = [Worker(i, f"n{i // 2}", "v100") for i in range(4)]
    both = section([Figures("v100", 1.005e11, 9e10, 1.2e10, 1.1e10)], workers, "NCCL, 256 MiB, median of 10")
    assert both.splitlines() == [
        "# ring all-reduce by NCCL, 256 MiB, median of 10; 4 workers on 2 nodes",
        '[network.types."v100"]',
        "inside_bytes_s = 100e9  # point to point 90e9",
        "outside_bytes_s = 12e9  # point to point 11e9",
    ]
    assert "[network]\noutside_bytes_s = 5e+07" in section([Figures("", None, None, 5e7, None)], workers, "gloo")
    assert "nothing to measure" in section([Figures("v100")], workers[:1], "gloo")
