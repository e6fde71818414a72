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
    try:
        files = importlib.metadata.files("slurm_hadar") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        # setup.cfg puts them into share/, which pip places differently for a user, a venv and --target
        if file.parts[-3:] == ("slurm_hadar", "wrappers", name):
            found = Path(str(file.locate())).resolve()
            if found.is_file():
                return found
    raise ClusterError(f"{name} is missing from this installation of slurm_hadar; install it again")
