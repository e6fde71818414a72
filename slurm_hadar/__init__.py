"""slurm_hadar: heterogeneity-aware scheduling of deep-learning jobs on stock Slurm.

``slurm_hadar.train`` is the training API (:mod:`slurm_hadar.runtime.training`); it alone needs PyTorch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from slurm_hadar.runtime.training import train as train


def __getattr__(name: str) -> Any:
    if name == "train":
        from slurm_hadar.runtime.training import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
