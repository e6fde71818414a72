"""Files that are summed while they are written, synced, and known again by size and SHA-256.

What is loaded is tensors, plain data and the few classes of :func:`_harmless`, and nothing that could run code, whoever
wrote the file; what could not be loaded so is refused when it is saved. A user can allow more classes by PyTorch's own
``torch.serialization.add_safe_globals``, or anything at all by ``HADAR_UNSAFE_LOAD=1``.

Needs no PyTorch until something is saved or loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import hashlib
import io
import os
import pathlib
import pickle
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from slurm_hadar.errors import CheckpointError

__all__ = [
    "Summed", "check_loadable", "create", "entry_of", "load", "loadable", "pickled", "safe_classes",
    "same_size", "seal", "sync", "sync_directory", "unsafe_allowed", "verify", "write_bytes", "write_object",
]  # fmt: skip

_BLOCK = 2**20


class Summed:
    """A file that sums what is written to it, and remembers why a write failed: ``torch.save`` hides the reason."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sum = hashlib.sha256()
        self._size = 0
        self.error: OSError | None = None

    @property
    def entry(self) -> dict[str, Any]:
        """What a manifest says of the file: ``size`` in bytes, ``sha256``."""
        return {"size": self._size, "sha256": self._sum.hexdigest()}

    def write(self, data: Any) -> int:
        """All of it. Raises OSError, the first of which is kept in ``error``."""
        view = memoryview(data).cast("B")
        try:
            written = 0
            while written < len(view):  # unbuffered: the system may take less than it was given
                written += self._file.write(view[written:])
        except OSError as error:
            self.error = self.error or error
            raise
        self._sum.update(view)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        """Bytes that were written so far."""
        return self._size

    def flush(self) -> None:
        """Nothing is to be done for an unbuffered file. PyTorch does it again when a stream is let go, maybe after the
        file is closed, and Python 3.13 prints what that raises."""

    def fileno(self) -> int:
        """The file's descriptor."""
        return self._file.fileno()

    def close(self) -> None:
        """Left to who opened it; libraries close what they are given."""


@contextlib.contextmanager
def create(path: Path) -> Iterator[Summed]:
    """A new file, synced when the block ends well. Raises OSError with the system's reason, whoever wrapped it."""
    with path.open("xb", buffering=0) as file:
        summed = Summed(cast(BinaryIO, file))
        try:
            yield summed
        except Exception as error:
            if summed.error is not None and error is not summed.error:
                raise summed.error from error
            raise
        os.fsync(file.fileno())


def write_object(path: Path, value: Any) -> dict[str, Any]:
    """``torch.save`` into a new file; its entry for the manifest.

    Raises OSError, CheckpointError where it could not be loaded again, or what the object cannot bear.
    """
    import torch

    with create(path) as file:
        torch.save(value, cast(Any, file))
    check_loadable(path, value)
    return file.entry


def loadable(value: Any) -> bool:
    """Whether a later run would load it, if it were saved."""
    try:
        pickled(value)
    except Exception:  # whatever a user's object thinks of being pickled
        return False
    return True


def pickled(value: Any) -> Any:
    """``torch.save`` into memory. Raises as :func:`write_object` does."""
    import torch

    data = io.BytesIO()
    torch.save(value, data)
    check_loadable(data, value)
    return data.getbuffer()


def check_loadable(saved: Path | BinaryIO, value: Any = None) -> None:
    """Raises CheckpointError if a later run would refuse to load what ``torch.save`` has written.

    Of a file no tensors are read. ``value``: what was saved, so that the part at fault can be named.
    """
    import torch

    if unsafe_allowed():
        return
    whole: Any = saved
    if isinstance(saved, io.BytesIO):
        saved.seek(0)
    try:
        with safe_classes():
            torch.load(whole, map_location="cpu", weights_only=True, mmap=isinstance(saved, Path))
            return
    except pickle.UnpicklingError as error:
        refused = _refused(error)
    where, kind = _holder(value, refused) or ("it", refused or "a class that PyTorch does not load safely")
    raise CheckpointError(
        f"{where} is an object of {kind}, which a later run will not load, since that could run code: keep plain data "
        "and tensors, or allow the class by torch.serialization.add_safe_globals before the training begins"
    )


def _refused(error: pickle.UnpicklingError) -> str:
    """The class that PyTorch names, in one of several ways; empty if it names none."""
    named = re.search(r"GLOBAL ([\w.]+)|<class '([\w.]+)'>$", str(error), re.MULTILINE)
    return (named[1] or named[2]) if named else ""


def _holder(value: Any, refused: str, path: str = "") -> tuple[str, str] | None:
    """Where an object of the refused class is (or the refused function itself), and its class."""
    for found in (type(value), value):
        if f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}" == refused:
            return path or "it", refused
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return next(filter(None, (_holder(v, refused, ".".join(filter(None, (path, str(key))))) for key, v in inner)), None)


def unsafe_allowed() -> bool:
    """Whether the user wants files loaded that may run code."""
    return os.environ.get("HADAR_UNSAFE_LOAD") == "1"


def safe_classes() -> contextlib.AbstractContextManager[Any]:
    """While files are loaded that hold nothing but tensors, plain data and harmless classes."""
    import torch

    return torch.serialization.safe_globals(_harmless())


def _harmless() -> list[Any]:
    """Classes that schedulers and users keep beside plain data, and that are no more than their values."""
    found: list[Any] = [frozenset, range, slice, argparse.Namespace, types.SimpleNamespace]
    # as Python 3.13 writes it, and as all others do
    found += [(pathlib.PosixPath, f"{module}.PosixPath") for module in ("pathlib._local", "pathlib")]
    found += [datetime.date, datetime.datetime, datetime.timedelta, datetime.timezone]
    if "numpy" in sys.modules:
        import numpy

        core = sys.modules.get("numpy._core.multiarray") or sys.modules["numpy.core.multiarray"]
        kinds = [getattr(numpy.dtypes, name) for name in numpy.dtypes.__all__ if name != "ObjectDType"]
        # what NumPy's own pickles name, and those of its first version
        found += [numpy.ndarray, numpy.dtype, core._reconstruct, core.scalar, *kinds]  # noqa: SLF001
        found += [(getattr(core, name), f"numpy.core.multiarray.{name}") for name in ("_reconstruct", "scalar")]
    return found


def write_bytes(path: Path, data: Any) -> dict[str, Any]:
    """A new file of ``data``; its entry for the manifest. Raises OSError."""
    with create(path) as file:
        file.write(data)
    return file.entry


def entry_of(path: Path) -> dict[str, Any]:
    """What a manifest would say of the file as it is. Raises OSError."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256")
        return {"size": file.tell(), "sha256": found.hexdigest()}


def seal(path: Path) -> dict[str, Any]:
    """Make a file safe that a library has written; its entry for the manifest. Raises OSError."""
    sync(path)
    return entry_of(path)


def load(path: Path, data: bytes | None = None) -> Any:
    """What ``torch.save`` wrote, tensors on the CPU; ``data``: where it is only a part of the file.

    Raises CheckpointError.
    """
    import torch

    source: Any = path if data is None else io.BytesIO(data)
    try:
        with safe_classes():
            return torch.load(source, map_location="cpu", weights_only=not unsafe_allowed())
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds {_refused(error) or 'what is no plain data'}, and loading that could run code: if it is "
            "yours, allow the class by torch.serialization.add_safe_globals, or anything by HADAR_UNSAFE_LOAD=1"
        ) from error
    except (OSError, RuntimeError, EOFError, AttributeError, ImportError) as error:
        raise CheckpointError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def same_size(path: Path, entry: Any) -> None:
    """Raises CheckpointError unless the file is there and as long as its manifest says."""
    try:
        size = entry["size"]
        actual = path.stat().st_size
    except (KeyError, TypeError):
        raise CheckpointError(f"its manifest says nothing usable of {path.name}") from None
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    if actual != size:
        raise CheckpointError(f"{path.name} has {actual} bytes instead of {size}")


def verify(path: Path, entry: Any) -> None:
    """Raises CheckpointError unless the file is what its manifest says, to the last bit."""
    same_size(path, entry)
    found = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
    if found.hexdigest() != entry.get("sha256"):
        raise CheckpointError(f"{path.name} is damaged: its SHA-256 sum differs")


def sync_directory(path: Path) -> None:
    """Make the names in a directory safe. Raises OSError."""
    sync(path, os.O_DIRECTORY)


def sync(path: Path, flags: int = 0) -> None:
    """Make safe on disk what somebody has written to ``path``. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
