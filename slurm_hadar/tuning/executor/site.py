"""The GPUs that a tuner has: those of this machine, or of the Slurm allocation that it runs in."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.errors import ConfigError
from slurm_hadar.runtime.allocation.gpus import NodeGpus, gpus_of_job, in_allocation
from slurm_hadar.sharing.gpus import VISIBLE, visible
from slurm_hadar.tuning.allocation.pool import GpuType, parse_pool

__all__ = ["Site", "Sites", "sites_here"]

EMULATED = "slot"
_CALL_S = 30.0


@dataclass(frozen=True, slots=True)
class Site:
    """GPUs of one type on one node, by their place among those that we have there. ``name`` is what the allocator
    calls them: a trial is on one node, so that GPUs of two nodes are two kinds to it. ``node`` is None here and now.
    ``on_node``: how many GPUs of all types the job has there."""

    name: str
    gpu_type: str
    gpus: tuple[int, ...]
    node: str | None = None
    cpus: int = 1
    on_node: int = 0


@dataclass(frozen=True)
class Sites:
    """All that a tuner has."""

    sites: tuple[Site, ...]
    speeds: Mapping[str, float] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)

    @property
    def count(self) -> int:
        """GPUs in all."""
        return sum(len(site.gpus) for site in self.sites)

    @property
    def types(self) -> tuple[str, ...]:
        """The GPU types, each once."""
        return tuple(dict.fromkeys(site.gpu_type for site in self.sites))

    def pool(self) -> tuple[GpuType, ...]:
        """As the allocator sees them."""
        best = max((self.speeds.get(t, 1.0) for t in self.types), default=1.0)
        return tuple(
            GpuType(site.name, len(site.gpus), self.speeds.get(site.gpu_type, 1.0) / best) for site in self.sites
        )

    def with_speeds(self, speeds: Mapping[str, float]) -> Sites:
        """The same, with speeds by GPU type, of which the ratios count."""
        return replace(self, speeds=speeds)


def sites_here(wanted: str | None, environ: Mapping[str, str]) -> Sites:
    """What ``--gpus`` asks for of what is there: a number, or ``TYPE:N,...``; None: all there are.

    Where the machine has no GPU the number says how many trials it pretends to have GPUs for. Raises ConfigError.
    """
    if in_allocation(environ):
        return _chosen(_allocated(environ), wanted)
    found = _local(environ)
    if found:
        return _chosen(found, wanted)
    if wanted is None:
        raise ConfigError("this machine has no GPU: say with --gpus N how many trials its CPUs shall run at once")
    counts = {EMULATED: _number(wanted)} if wanted.isdecimal() else _typed(wanted)
    sites, first = [], 0
    for name, count in counts.items():
        sites.append(Site(name, name, tuple(range(first, first + count)), cpus=os.cpu_count() or 1))
        first += count
    return Sites(tuple(sites))


def _number(text: str) -> int:
    if not 1 <= int(text) <= 4096:
        raise ConfigError(f"--gpus {text} must be a whole number from 1 to 4096")
    return int(text)


def _typed(text: str) -> dict[str, int]:
    return {t.name: t.count for t in parse_pool(text, {})}


def _chosen(found: Sequence[Site], wanted: str | None) -> Sites:
    there: dict[str, int] = {}
    for site in found:
        there[site.gpu_type] = there.get(site.gpu_type, 0) + len(site.gpus)
    total = sum(there.values())
    if wanted is None:
        return Sites(tuple(found))
    if wanted.isdecimal():
        if not 1 <= int(wanted) <= total:
            raise ConfigError(f"--gpus {wanted}: there are {total} GPUs here")
        budget, any_left = dict(there), int(wanted)
    else:
        budget = _typed(wanted)
        for name, count in budget.items():
            if count > there.get(name, 0):
                raise ConfigError(f"--gpus {name}:{count}: there are {there.get(name, 0)} GPUs of this type here")
        any_left = sum(budget.values())
    taken = []
    for site in found:
        count = min(len(site.gpus), budget.get(site.gpu_type, 0), any_left)
        if count:
            taken.append(replace(site, gpus=site.gpus[:count]))
            budget[site.gpu_type] -= count
            any_left -= count
    return Sites(tuple(taken))


def _local(environ: Mapping[str, str]) -> list[Site]:
    """GPUs of this machine, by nvidia-smi, as far as they are to be seen."""
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        done = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,uuid", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_CALL_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.rpartition(",") for line in done.stdout.splitlines() if line.strip())
    gpus = _visible([(name.strip(), uuid.strip()) for name, _, uuid in rows], environ)
    by_type: dict[str, list[int]] = {}
    for index, (name, _) in enumerate(gpus):
        short = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-") or "gpu"
        by_type.setdefault(short, []).append(index)
    return [Site(name, name, tuple(own), cpus=os.cpu_count() or 1) for name, own in by_type.items()]


def _visible(gpus: Sequence[tuple[str, str]], environ: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """Of all GPUs (name, UUID) those that ``CUDA_VISIBLE_DEVICES`` names, by number or by the beginning of a UUID, in
    its order; all where it is not set. As for CUDA, one that is not there ends the list."""
    if VISIBLE not in environ:
        return gpus
    found = []
    for word in visible(environ):
        of_uuid = (gpu for gpu in gpus if word.startswith("GPU-") and gpu[1].startswith(word))
        gpu = next(iter(gpus[int(word) :]), None) if word.isdecimal() else next(of_uuid, None)
        if gpu is None:
            break
        found.append(gpu)
    return found


def _allocated(environ: Mapping[str, str]) -> list[Site]:
    """GPUs of the job, node by node. Raises ConfigError, or AllocationLost."""
    found = [_site(one) for one in gpus_of_job(environ)]
    if not found:
        raise ConfigError(f"job {environ['SLURM_JOB_ID']} has no GPUs: submit it with --gres=gpu:N or --gpus=N")
    return found


def _site(one: NodeGpus) -> Site:
    return Site(f"{one.gpu_type}@{one.node}", one.gpu_type, one.gpus, one.node, one.cpus, one.on_node)
