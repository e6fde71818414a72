"""slurm_hadar: heterogeneity-aware scheduling of deep-learning jobs on stock Slurm.

``slurm_hadar.train`` is the training API (:mod:`slurm_hadar.runtime.training`), ``slurm_hadar.read_checkpoint`` reads
what it saved (:func:`slurm_hadar.runtime.checkpoint.store.read_checkpoint`); ``slurm_hadar.LightningCallback`` and
``slurm_hadar.HuggingFaceCallback`` do for the Trainers of these libraries what ``train`` does for a loop of one's own.
The names so far alone need PyTorch. ``slurm_hadar.submit`` makes a Python function a job
(:func:`slurm_hadar.submission.future.submit`).
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from slurm_hadar.runtime.batches.sampler import SharedBatchSampler as SharedBatchSampler
    from slurm_hadar.runtime.callbacks.huggingface import HuggingFaceCallback as HuggingFaceCallback
    from slurm_hadar.runtime.callbacks.lightning import LightningCallback as LightningCallback
    from slurm_hadar.runtime.checkpoint.store import read_checkpoint as read_checkpoint
    from slurm_hadar.runtime.forks.run import Consolidation as Consolidation
    from slurm_hadar.runtime.forks.weights import Outer as Outer
    from slurm_hadar.runtime.training import train as train
    from slurm_hadar.submission.future import Job as Job
    from slurm_hadar.submission.future import submit as submit

_HOMES = {
    "train": "slurm_hadar.runtime.training",
    "read_checkpoint": "slurm_hadar.runtime.checkpoint.store",
    "LightningCallback": "slurm_hadar.runtime.callbacks.lightning",
    "HuggingFaceCallback": "slurm_hadar.runtime.callbacks.huggingface",
    "Consolidation": "slurm_hadar.runtime.forks.run",
    "Outer": "slurm_hadar.runtime.forks.weights",
    "SharedBatchSampler": "slurm_hadar.runtime.batches.sampler",
    "submit": "slurm_hadar.submission.future",
    "Job": "slurm_hadar.submission.future",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
