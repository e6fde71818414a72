"""The page of memory that a training process shares with its agent, and the counting of optimizer steps into it.

Self-contained and free of third-party imports: it is loaded into whatever Python the user's script runs in (3.8 or
later), also where slurm_hadar is not installed.

One file ``$HADAR_RUN_DIR/<pid>.map`` per training process of rank 0, or server of models, 8-byte words. It writes all
but ``ASKED``, ``GO_ON`` and ``PAUSE_S``, which the agent writes. A word is written by one side only, so no lock is
needed.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

MAGIC_VALUE = 0x4841444152000001
SIZE = 256
# whole numbers (-1 = unknown)
MAGIC, PID, RANK, WORLD, STEPS, TOTAL, RESUMABLE = range(7)
SAVED_STEP, GENERATION, SAVES, FAILURES, ASKED, ANSWERED, GO_ON = range(7, 14)
CONSOLIDATION, CONSOLIDATED, CLOSES, FORGOTTEN = range(24, 28)
# floating-point seconds (-1 = unknown)
SAVE_S, LOAD_S, PAUSE_S, STALL_S = range(16, 20)
CONSOLIDATE_S = 28
# what all workers together take in a step, where that stays the same whatever their number; 0: it does not
GLOBAL_BATCH = 29
# workers that a server of models wants; 0: it has not said, or is none
WANTED = 30


class Page:
    """``words`` and ``seconds`` are views of the same memory as int64 and float64."""

    def __init__(self, path: str | os.PathLike[str], create: bool = False) -> None:
        flags = os.O_RDWR | (os.O_CREAT | os.O_EXCL if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                os.write(descriptor, bytes(SIZE))  # no hole, of which on a full disk a process dies (SIGBUS)
            self._memory = mmap.mmap(descriptor, SIZE)
        except OSError:
            if create:
                os.unlink(path)  # noqa: PTH108
            raise
        finally:
            os.close(descriptor)
        view = memoryview(self._memory)
        self.words = view.cast("q")
        self.seconds = view.cast("d")

    @property
    def ready(self) -> bool:
        """Whether its writer has filled it in."""
        return self.words[MAGIC] == MAGIC_VALUE


def position() -> tuple[int, int]:
    """(rank, world) of this process in its training."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if "RANK" in os.environ:
        return int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))
    return int(os.environ.get("SLURM_PROCID", "0")), 1


def open_page(rank: int, world: int) -> Page | None:
    """The page of this process, made on first use; None where there is no agent."""
    global _page
    directory = os.environ.get("HADAR_RUN_DIR")
    if _page is None and directory:
        page = _new_page(os.path.join(directory, "%d.map" % os.getpid()))  # noqa: PTH118, UP031
        for word in (TOTAL, SAVED_STEP, GENERATION, CONSOLIDATION, CONSOLIDATED):
            page.words[word] = -1
        for word in (SAVE_S, LOAD_S, STALL_S, CONSOLIDATE_S):
            page.seconds[word] = -1.0
        page.words[PID], page.words[RANK], page.words[WORLD] = os.getpid(), rank, world
        page.words[MAGIC] = MAGIC_VALUE  # last: the agent reads nothing before this
        _page = page
    return _page


def _new_page(path: str) -> Page:
    """Emptied where there is one, of the program that this process was before an exec; what the agent writes stays."""
    try:
        return Page(path, create=True)
    except FileExistsError:
        page = Page(path)
    page.words[MAGIC] = 0
    for word in {*range(SIZE // 8)} - {ASKED, ANSWERED, GO_ON, PAUSE_S}:
        page.words[word] = 0
    return page


def take_over(rank: int, world: int) -> Page | None:
    """The page, for a training loop that counts its own steps: the optimizer hook stops counting into it."""
    global _counting
    _counting = False
    _forget()
    return open_page(rank, world)


def ask_for_a_save() -> None:
    """What an agent asks for by ASKED, from within the process: the loop saves when its step is over, and goes on. Of a
    training without a loop of ours nothing comes of it."""
    if _page is not None:
        _page.words[ASKED] += 1


_page: Page | None = None
_counting = True
_nobody: Any = [0] * (SIZE // 8)
_words = _nobody
_last: int | None = None
_seen: set[int] = set()


def count_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    """PyTorch's global step post-hook. One training step is one turn of the busiest optimizer."""
    if id(optimizer) == _last:
        _words[STEPS] += 1
    else:
        _other_optimizer(id(optimizer))


# As by torch.compiler.disable, which would import the compiler: one that compiles an optimizer's step is not to trace
# this too, nor to compile it anew when what it goes by has changed.
count_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # noqa: SLF001


def _other_optimizer(key: int) -> None:
    """An optimizer that has already stepped in this turn starts the next turn; a new one belongs to this turn."""
    global _last, _words
    if _last is None:
        _words = _find_words()
        _words[STEPS] += 1
        _seen.clear()
    elif key in _seen:
        _words[STEPS] += 1
        _seen.clear()
    _seen.add(key)
    # after a lone optimizer's turn the fast path may count; in a turn of several only the first of them does
    _last = key if len(_seen) == 1 else -1


def _find_words() -> Any:
    try:
        rank, world = position()
        page = open_page(rank, world) if _counting and rank == 0 else None
    except Exception as error:  # measuring must never end a training
        page = None
        try:
            line = "hadar: steps of this process are not counted: %s\n" % error  # noqa: UP031
            os.write(sys.stderr.fileno(), line.encode())  # past Python's buffer, as sitecustomize does
        except (OSError, ValueError, AttributeError):  # a full disk, a closed stream: the line is lost, nothing else
            pass
    return _nobody if page is None else page.words


def _forget() -> None:
    """Start over: in a forked child, whose page is its parent's, and when the training loop counts by itself."""
    global _last, _words
    _last, _words = None, _nobody
    _seen.clear()


def _after_fork() -> None:
    global _page
    _page = None
    _forget()


os.register_at_fork(after_in_child=_after_fork)
