"""The tensors of a checkpoint, by the planners and the storage of ``torch.distributed.checkpoint`` (DCP).

A state (nested dicts, lists and tuples) is split into its form, with a mark in place of each tensor, and the tensors
by name. Each rank plans what it has, rank 0 makes one plan of all, each rank writes its share. A tensor that is
sharded (``DTensor``: FSDP2, tensor parallelism) is written by the ranks that hold it; any other is rank 0's, which
alone decides where copies differ (the batch-norm statistics of DDP, GPUs of different types), unless they are no copies
(:mod:`slurm_hadar.runtime.checkpoint.states.by_worker`). Reading needs no
agreement: each rank reads the slices that it wants, so any number of ranks can go on, with other shards or none.

DCP's own ``save`` is not used, for it plans, writes and agrees in one call, on tensors that must not change meanwhile:
here only writing goes on while the training does, and each step's failure can be told by its cause.

The files are DCP's, so that its tools read them too. Its ``.metadata`` is a pickle; here it is read by one that knows
DCP's own classes of tensors and nothing else, so that no file can make it run code.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from slurm_hadar.errors import CheckpointError
from slurm_hadar.runtime.checkpoint import files

__all__ = [
    "MARK",
    "LocalPlan",
    "Stage",
    "TargetOf",
    "is_sharded",
    "name_of",
    "read",
    "split",
    "strides_of",
    "walk",
    "write",
    "write_metadata",
]

MARK = "\0tensor"
_STRIDES = "strides"
_FAULTS = (
    OSError,
    RuntimeError,
    ValueError,
    KeyError,
    AssertionError,
    AttributeError,
    EOFError,
    TypeError,
    pickle.UnpicklingError,
)

_METADATA = {
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
    "torch.distributed.checkpoint.metadata": {
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "pathlib": {"PosixPath"},
}
"""What stands in a ``.metadata``, by module."""

TargetOf = Callable[[tuple[Any, ...], Any, Any], Any]
"""(path in the state, size, dtype) to the tensor to read into, or None for a whole one on the CPU."""
OrderOf = Callable[[tuple[Any, ...], Any], tuple[int, ...] | None]
"""(path in the state, size) to the strides that a tensor of it is taken to have, None: it is contiguous."""


def walk(tree: Any, leaf: Callable[[Any, tuple[Any, ...]], Any], path: tuple[Any, ...] = ()) -> Any:
    """A copy of ``tree`` in which that for which ``leaf(value, path)`` is not None is replaced by it."""
    found = leaf(tree, path)
    if found is not None:
        return found
    if isinstance(tree, dict):
        made = copy.copy(tree)  # a dict of another class stays one, and a module's state keeps its _metadata
        for key, value in tree.items():
            made[key] = walk(value, leaf, (*path, key))
        return made
    if type(tree) in (list, tuple):
        return type(tree)(walk(value, leaf, (*path, i)) for i, value in enumerate(tree))
    return tree


def split(tree: Any, order_of: OrderOf = lambda _path, _size: None) -> tuple[Any, dict[str, Any]]:
    """The form of a state and its tensors, named by their path, in an order that is the same on all ranks. The form
    tells how a tensor lies in memory where it is otherwise than by ``order_of``: what is computed rounds by that."""
    tensors: dict[str, Any] = {}

    def mark(value: Any, path: tuple[Any, ...]) -> dict[str, Any] | None:
        if not _plain_or_sharded(value):
            return None
        name = ".".join(str(p) for p in path if p != "")
        while name in tensors:
            name += "~"
        tensors[name] = value
        if is_sharded(value) or (strides := strides_of(value)) == order_of(path, value.shape):
            return {MARK: name}
        return {MARK: name, _STRIDES: strides}

    return walk(tree, mark), tensors


def name_of(value: Any) -> str | None:
    """Of the tensor in whose place ``value`` stands in a form; None if it is no such mark."""
    return value[MARK] if isinstance(value, dict) and list(value) in ([MARK], [MARK, _STRIDES]) else None


def strides_of(tensor: Any) -> tuple[int, ...] | None:
    """How it lies in memory, or a copy of it would; None: it is contiguous."""
    import torch

    return None if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()


class LocalPlan:
    """What one rank has and will write.

    Parameters
    ----------
    tensors: of :func:`split`; those that are not sharded count on rank 0 only, but for those of ``own``.
    leads: this is rank 0.
    own: what this rank has of its own, and the names under which it is written.
    """

    def __init__(self, tensors: dict[str, Any], leads: bool, own: Mapping[str, str] | None = None) -> None:
        from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

        names = own or {}
        written = {names.get(n, n): t for n, t in tensors.items() if leads or n in names or is_sharded(t)}
        self.planner = DefaultSavePlanner(flatten_sharded_tensors=False)
        self.planner.set_up_planner(written, is_coordinator=leads)
        self.plan: Any = self.planner.create_local_plan()

    def combine(self, plans: list[Any], directory: Path) -> tuple[list[Any], Any]:
        """Rank 0: all ranks' final plans, and the metadata to be written last."""
        final, metadata = self.planner.create_global_plan(plans)
        return _writer(directory).prepare_global_plan(final), metadata

    def finish(self, plan: Any) -> None:
        """This rank's final plan is known."""
        self.plan = self.planner.finish_plan(plan)


class Stage:
    """Copies of a rank's share in host memory, kept for the next save: fresh memory would cost more than copying."""

    def __init__(self) -> None:
        self._buffers: dict[Any, Any] = {}

    def copy(self, local: LocalPlan) -> Stage:
        """Copy the share; done when this returns."""
        import torch

        buffers, devices = {}, set()
        for item in local.plan.items:
            found: Any = local.planner.resolve_data(item)  # a tensor: the planner was given nothing else
            tensor = found.detach()
            buffer = self._buffers.get(item.index)
            if buffer is None or buffer.shape != tensor.shape or buffer.dtype != tensor.dtype:
                buffer = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            buffer.copy_(tensor, non_blocking=tensor.is_cuda)
            buffers[item.index] = buffer
            if tensor.is_cuda:
                devices.add(tensor.device)
        for device in devices:
            torch.cuda.current_stream(device).synchronize()
        self._buffers = buffers
        return self

    def resolve_data(self, item: Any) -> Any:
        """The copy; the one call of a ``SavePlanner`` that writing makes."""
        return self._buffers[item.index]


def write(local: LocalPlan, source: LocalPlan | Stage, directory: Path) -> tuple[list[Any], dict[str, Any]]:
    """Write a rank's share: DCP's results, and the entries of its files for the manifest. Raises OSError."""
    if not local.plan.items:
        return [], {}
    writer = _writer(directory)
    entries: dict[str, Any] = {}
    with _summing(writer, entries):
        planner = source.planner if isinstance(source, LocalPlan) else source
        results = writer.write_data(local.plan, planner).wait()
    return results, entries


def write_metadata(metadata: Any, results: list[list[Any]], directory: Path) -> dict[str, Any]:
    """Rank 0, last: what is where. The entry of the file for the manifest. Raises OSError."""
    writer = _writer(directory)
    entries: dict[str, Any] = {}
    with _summing(writer, entries):
        writer.finish(metadata, results)
    return {name.removesuffix(".tmp"): entry for name, entry in entries.items()}


def read(directory: Path, form: Any, target_of: TargetOf | None = None) -> Any:
    """The state whose form is given, its tensors read from ``directory``. Raises CheckpointError."""
    try:
        return _read(directory, form, target_of)
    except _FAULTS as error:
        reason = str(error).splitlines() or [""]
        raise CheckpointError(f"{directory} cannot be read: {type(error).__name__}: {reason[0]}") from error


def _read(directory: Path, form: Any, target_of: TargetOf | None) -> Any:
    import torch
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    reader = FileSystemReader(directory)
    with (directory / ".metadata").open("rb") as file:
        metadata = _Metadata(file).load()
    targets: dict[str, Any] = {}

    def target(value: Any, path: tuple[Any, ...]) -> Any:
        name = name_of(value)
        if name is None:
            return None
        saved: Any = metadata.state_dict_metadata[name]
        dtype = saved.properties.dtype
        found = target_of(path, saved.size, dtype) if target_of else None
        if _STRIDES in value and not is_sharded(found):
            strides = value[_STRIDES]
            found = None if strides is None else torch.empty_strided(saved.size, strides, dtype=dtype)
        targets[name] = torch.empty(saved.size, dtype=dtype) if found is None else found
        return targets[name]

    state = walk(form, target)
    planner = DefaultLoadPlanner(flatten_sharded_tensors=False)
    planner.set_up_planner(targets, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    (plan,) = reader.prepare_global_plan(planner.create_global_plan([plan]))
    reader.read_data(planner.finish_plan(plan), planner).wait()
    return state


class _Metadata(pickle.Unpickler):
    """Reads DCP's description of tensors. Entries that are no tensors, which DCP unpickles freely, are not among it."""

    def find_class(self, module: str, name: str) -> Any:
        import torch

        module = "pathlib" if module == "pathlib._local" else module  # what Python 3.13 calls it, of others none
        if name in _METADATA.get(module, ()):
            return super().find_class(module, name)
        if module == "torch" and isinstance(found := getattr(torch, name, None), torch.dtype):
            return found
        if (module, name) == ("builtins", "getattr"):
            return _member
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def _member(kind: Any, name: str) -> Any:
    """What Python up to 3.11.3 calls getattr for: a member of an enumeration."""
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind[name]
    raise pickle.UnpicklingError(f"the attribute {name} of {kind!r} does not belong there")


def is_sharded(tensor: Any) -> bool:
    """Whether each worker has a part of it."""
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def _plain_or_sharded(value: Any) -> bool:
    """Whether DCP can store it. Sparse, quantized, empty and lazy tensors stay where they are, for ``torch.save``."""
    import torch

    if not isinstance(value, torch.Tensor):
        return False
    if is_sharded(value):
        return True
    common = type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided
    return common and not value.is_quantized and not value.is_meta and value.numel() > 0


def _writer(directory: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    # no copying ahead: it works on the current GPU of the thread, which in a new thread is not the training's
    return FileSystemWriter(directory, sync_files=False, per_thread_copy_ahead=0)


@contextlib.contextmanager
def _summing(writer: Any, entries: dict[str, Any]) -> Iterator[None]:
    """Let DCP write through files that sum and sync."""

    @contextlib.contextmanager
    def create_stream(path: Any, _mode: str) -> Iterator[Any]:
        with files.create(Path(path)) as file:
            yield file
        entries[Path(path).name] = file.entry

    writer.fs.create_stream = create_stream
    yield
