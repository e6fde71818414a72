"""The training API: a loop that saves when asked and resumes where it was.

::

    import slurm_hadar
    run = slurm_hadar.train(model, optimizer, total_steps=2000, loader=loader)
    for batch in run:
        ...
        optimizer.step()

One turn of the loop is one step. Resuming is exact: weights, optimizer, scheduler, random numbers, place in the data.
Where nothing is there to save for (outside Slurm, with no ``directory``), it is an ordinary loop.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from slurm_hadar import messages
from slurm_hadar.runtime import emulation
from slurm_hadar.runtime.batches.data import Feed
from slurm_hadar.runtime.batches.shares import Shares
from slurm_hadar.runtime.checkpoint.place import store_here, workload_here
from slurm_hadar.runtime.checkpoint.saver import Saver
from slurm_hadar.runtime.checkpoint.states.parts import (
    also_of,
    named,
    warn_of_what_cannot_be_loaded,
    warn_of_what_cannot_be_saved,
)
from slurm_hadar.runtime.checkpoint.trigger import SaveEvery
from slurm_hadar.runtime.forks.place import fork_place
from slurm_hadar.runtime.forks.run import Consolidation, ForkedRun
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.run import Run
from slurm_hadar.runtime.spec import TrainingSpec, steps_of_all, worker_batch_of
from slurm_hadar.runtime.unsaved.forgotten import Beside
from slurm_hadar.runtime.workers.balance import BY_HAND, Balance, is_wanted
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["train"]


def train(
    model: Any,
    optimizer: Any,
    *,
    total_steps: int,
    loader: Any = None,
    scheduler: Any = None,
    also: dict[str, Any] | None = None,
    state: dict[str, Any] | None = None,
    save_every_s: float | None = 600.0,
    save_every_steps: int | None = None,
    keep: int = 2,
    async_save: bool = True,
    name: str | None = None,
    directory: str | Path | None = None,
    model_name: str | None = None,
    batch: int | None = None,
    global_batch: int | None = None,
    balanced: bool | str | None = None,
    most_worker_batch: int | None = None,
    consolidation: Consolidation | None = None,
) -> Run | ForkedRun:
    """Make the loop of a training, resumed from its newest good checkpoint if there is one.

    With ``torch.distributed`` initialised (and the model wrapped) all ranks call this, and save together.

    Parameters
    ----------
    model, optimizer, scheduler: one object with ``state_dict``, or a list, tuple or dict of them.
    total_steps: the loop ends when so many steps were made, over all runs of the job.
    loader: see :class:`slurm_hadar.runtime.batches.data.Feed`; None gives step numbers.
    also: whatever else goes on with the training, by name: an average of weights, a gradient scaler, anything that has
        ``state_dict`` and ``load_state_dict``; or numbers, texts, None, and lists and dicts of them. Lists and dicts
        get their content back in place; numbers and texts are those of ``run.also``, to be read and set there.
    state: a dict of plain data and tensors of yours (it is ``run.state``) that is saved and restored too, it and lists
        and dicts in it in place; rank 0's. Numbers and tensors are to be read and set there.
    save_every_s, save_every_steps: saves that nobody asked for; None: none of that sort.
    async_save: a save that nobody waits for holds the loop up only while the state is copied to host memory (as much
        of it as this worker writes), and is written meanwhile. One that the scheduler asked for is always waited for.
    keep: checkpoints that stay. name: tells several trainings of one job apart.
    directory: where checkpoints go, whichever job runs; default: the job's own directory.
    model_name, batch: the workload, where the job's comment does not say it.
    global_batch: samples in one step over all workers. The loader's batch size becomes ``global_batch / workers``, so
        that a step, the number of steps and the samples of each step stay the same when the job goes on with another
        number of workers. Needed for ``gpus=2-8`` in the comment; take a ``DistributedSampler`` even for one worker.
        A loader of your own asks ``run.worker_batch``.
    balanced: each worker's share of the global batch follows its speed, so that unlike GPUs do not wait for each other;
        default: if the job's comment says ``mix=balanced``. The loss is the mean over the worker's samples, as ever;
        ``DistributedDataParallel`` weights the gradients. ``"by_hand"``: the training averages gradients itself,
        weighted by ``run.weight``, and calls ``run.computed()`` before it does. A loader of your own asks
        ``run.share``.
    most_worker_batch: the largest share of one worker, such as fits in the memory of a GPU.
    consolidation: how the weights of copies are brought together where the job is forked (``fork=`` in the comment); in
        any other job it does nothing. A copy keeps no checkpoints: its offers and the consolidations are those.

    What goes on but was not given is told once on stderr
    (:class:`slurm_hadar.runtime.unsaved.forgotten.Forgotten`). A save waits for a turn in which all optimizers have
    used their gradients, since gradients are in no checkpoint. Within the loop a SIGTERM, as of ``scontrol requeue``,
    saves before it ends the process, as far as Slurm's KillWait allows.

    Raises CheckpointError if a checkpoint is there that does not fit the model, or if a newer run has taken over;
    ValueError if ``total_steps`` is no whole number or not the same on all workers, if these cannot share
    ``global_batch`` equally, if the loader's batches cannot be made of it, or if gradients cannot be weighted.
    """
    gang = Gang()
    total_steps = steps_of_all(total_steps, gang)
    worker_batch = worker_batch_of(global_batch, gang.world)
    pace = emulation.pace_here(gang.world, *workload_here(model_name, batch), worker_batch)
    if loader is not None and any(one is loader for one in (also or {}).values()):
        raise ValueError("also= holds the loader, whose place is kept as loader=: leave it out of also=")
    with_state, plain = also_of(also or {})
    given = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "also": with_state}
    parts = {kind: named(part) for kind, part in given.items()}
    uneven = is_wanted(balanced, global_batch)
    place = fork_place(os.environ, messages.restart_count(os.environ))
    if place is not None and uneven:
        raise ValueError("the workers of a copy (fork= in the job's comment) cannot be balanced: take one of the two")
    shares = Shares(global_batch, gang.world, gang.rank) if uneven and global_batch and gang.world > 1 else None
    feed = Feed(loader, worker_batch, shares, parts["model"])
    spec = TrainingSpec(
        parts,
        total_steps,
        gang,
        feed,
        state if isinstance(state, dict) else dict(state or {}),
        plain,
        worker_batch,
        pace,
    )
    if place is not None:
        return ForkedRun(spec, place.below(name), consolidation or Consolidation())
    balance = None
    if shares is not None:
        balance = Balance(gang, shares, model, balanced == BY_HAND, most_worker_batch, feed.ahead, pace)
    store = store_here(directory, name, keep)
    link = Link(gang, resumable=store is not None)
    saver = Saver(store, gang, link, async_save) if store is not None else None
    if saver is not None:
        if gang.leads:
            warn_of_what_cannot_be_loaded(parts["model"])
        warn_of_what_cannot_be_saved(parts, spec.state, plain, gang.leads)
    mine = [*(one for part in parts.values() for one in part.values()), spec.state, plain]
    beside = Beside.of(sys._getframe(1), mine, feed)  # noqa: SLF001 - what the script has where it calls this
    return Run(spec, SaveEvery(save_every_s, save_every_steps), link, saver, balance, beside)
