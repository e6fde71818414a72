"""Finding the files that are installed beside Slurm, from a checkout as well as from an installed wheel."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from slurm_hadar.errors import ClusterError

__all__ = ["find"]


def find(name: str) -> Path:
    """The path of ``wrappers/NAME``. Raises ClusterError where the installation lacks it."""
    checkout = Path(__file__).resolve().parents[2] / "wrappers" / name
    if checkout.is_file():
        return checkout
    installed = [
        # pip --target puts share/ beside the package, whatever its own record says
        Path(__file__).resolve().parents[2] / "share/slurm_hadar/wrappers" / name,
        *_recorded(name),
    ]
    for path in installed:
        if path.is_file():
            return path
    raise ClusterError(f"{name} is missing from this installation of slurm_hadar; install it again")


def _recorded(name: str) -> list[Path]:
    """Where the installation's own record has the file; it lies differently for a user, a venv and a prefix."""
    try:
        files = importlib.metadata.files("slurm_hadar") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [Path(str(f.locate())).resolve() for f in files if f.parts[-3:] == ("slurm_hadar", "wrappers", name)]
