"""The loop of a training: one turn is one step, saved when that is due, and resumed where it was."""

from __future__ import annotations

import atexit
import contextlib
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from slurm_hadar.errors import CheckpointError
from slurm_hadar.joblog import say
from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.data import OVER
from slurm_hadar.runtime.batches.epochs import Epoch
from slurm_hadar.runtime.checkpoint.resumed import ADVICE, Conditions, Resumed
from slurm_hadar.runtime.checkpoint.saver import Saver
from slurm_hadar.runtime.checkpoint.states.devices import put_back
from slurm_hadar.runtime.checkpoint.states.parts import classes_of, refill, restore
from slurm_hadar.runtime.checkpoint.trigger import SaveEvery, Trigger
from slurm_hadar.runtime.checkpoint.turns import Turns
from slurm_hadar.runtime.progress.endings import Ending, die, flush
from slurm_hadar.runtime.progress.link import Link
from slurm_hadar.runtime.spec import TrainingSpec
from slurm_hadar.runtime.unsaved.forgotten import Beside, Forgotten
from slurm_hadar.runtime.unsaved.settings import Settings, words_of
from slurm_hadar.runtime.workers.balance import Balance

__all__ = ["Run"]

_in_its_loop_last: weakref.WeakSet[Run] = weakref.WeakSet()  # one, of this process
_loops: weakref.WeakSet[Any] = weakref.WeakSet()
os.register_at_fork(after_in_child=_loops.clear)


@atexit.register
def _leave_loops() -> None:
    """A loop that is held in a variable ends here, while all is there that a save needs."""
    for loop in list(_loops):
        with contextlib.suppress(ValueError):  # it is at work, and exits
            loop.close()


class Run:
    """One run of a training; iterate over it for batches. Made by :func:`slurm_hadar.runtime.training.train`."""

    def __init__(
        self,
        spec: TrainingSpec,
        every: SaveEvery,
        link: Link,
        saver: Saver | None,
        balance: Balance | None = None,
        beside: Beside | None = None,
    ) -> None:
        self.step = 0
        self.worker_batch, self.total_steps = spec.worker_batch, spec.total_steps
        self.state, self.also = spec.state, spec.also
        self._spec, self._parts, self._feed, self._gang, self._pace = spec, spec.parts, spec.feed, spec.gang, spec.pace
        self._link, self._saver, self._balance = link, saver, balance
        self._turns = Turns(self._parts.get("optimizer", {}).values())
        self._forgotten = Forgotten(self._parts, self._turns, link, beside)
        self._settings = Settings(self._feed.source)
        self._ending = Ending(self._gang.leads)
        weakref.finalize(self, self._ending.forget)
        self._trigger = Trigger(self._gang, link, self._ending, self._pace, every)
        self._made = 0  # turns of this run
        self._stopped = self._end_unsaved = False
        self._in_step = self._between = self._wanted = self._peeked = False
        self._whole, self._in_epoch = True, False
        self._told_of_pass = False
        self._left_epoch = self._has_left = False  # the pass over its batches was left by ``break``; in the run before
        self._process = os.getpid()
        self._drawn: Mapping[str, str] = rng.drawn()
        self._resume()
        link.begin(self.step, self.total_steps, spec.samples_per_step)
        self._trigger.begin(self.step)

    @property
    def epoch(self) -> int:
        """The epoch of the last batch, from 0."""
        return self._feed.epoch

    @property
    def unfinished(self) -> bool:
        """Whether it was left with steps to go, of which the last one made is not saved."""
        return self._saver is not None and self._made > 0 and self.step < self.total_steps and not self._is_saved

    @property
    def _is_saved(self) -> bool:
        return self._saver is not None and self._saver.saved_step == self.step and not self._end_unsaved

    @property
    def share(self) -> int | None:
        """This worker's samples in the present step; None without ``global_batch``."""
        return self._balance.share if self._balance is not None else self.worker_batch

    @property
    def weight(self) -> float:
        """What this worker's mean gradient counts for in the mean over workers: 1 with equal shares."""
        return self._balance.weight if self._balance is not None else 1.0

    def computed(self) -> None:
        """With ``balanced="by_hand"``: this worker's own gradient is ready, what follows waits for the others."""
        if self._balance is not None:
            self._balance.computed()

    def __iter__(self) -> Iterator[Any]:
        return self._begin_loop()

    def epochs(self) -> Iterator[tuple[int, Epoch]]:
        """Each epoch from the one where it stopped: its number, and its batches that are still to come, which stand
        for the loader. What the script does in this turn, as a validation behind the batches, belongs to the epoch.

        A checkpoint is made behind a step that is not the epoch's last, or when the turn is over; in the last epoch
        before its last step, too: a run that is killed in what follows the batches leaves one to do, and what the
        script sets in the loop. Only what cannot wait for that (SIGTERM) is saved behind an epoch's last step; the next
        run then begins with this epoch, of which no batch is left, and does what follows it.
        """
        while self.step < self.total_steps or (self._feed.index and not self._stopped):
            self._in_epoch = True
            self._forgotten.before_epoch(tells=self._gang.leads)
            try:
                yield self.epoch, Epoch(self._feed, self._rest_of_epoch, self._feed.index)
            finally:  # left early, too
                self._in_epoch = False
            self._forgotten.end_epoch()
            self._has_left = self._left_epoch = False
            self._feed.next_epoch()
            if self._saver is not None:
                self._save_epoch()

    def _rest_of_epoch(self) -> Iterator[Any]:
        self._left_epoch = self._has_left
        self._forgotten.begin_epoch()
        if self._saver is not None:
            self._tell_of_epoch(self._settings.begin_epoch())
        return iter(()) if self._has_left else self._begin_loop(within_epoch=True)

    def _tell_of_epoch(self, lost: list[str]) -> None:
        """Of what differs in one that a run is resumed in."""
        over = self.step >= self.total_steps
        if lost and not over and self._gang.leads:
            say(words_of(lost))
        if over or self._has_left:
            self._tell_of_none()

    def _tell_of_none(self) -> None:
        """A pass over the epoch's batches gives none: this run has made a turn of none, or it is another pass."""
        if not self._gang.leads:
            return
        if self._made > 0 and not self._told_of_pass:
            self._told_of_pass = True
            say(
                f"WARNING: the loader of epoch {self.epoch} is gone through once more, and has no batch left: each of "
                "an epoch's is one step. For another pass over the data, as an evaluation, take the loader that "
                "train() was given"
            )
        elif self._made == 0 and self._saver is not None:
            say(
                f"all batches of epoch {self.epoch} were used before, so its loop makes no turn, and what follows it "
                "is done: what the script reads there and sets in the loop alone, as a loss, has no value"
            )

    def _save_epoch(self) -> None:
        """Between two epochs; behind the last one what was done since its last step is saved, too."""
        if self.step < self.total_steps:
            self._between_steps(ripe=lambda: self._whole, looks=True)
            return
        self._try_save(wait=True, ends=True)
        self._finish()
        self._ending.forget()
        if self._ending.asked:
            self._end()

    def _begin_loop(self, within_epoch: bool = False) -> Iterator[Any]:
        loop = self._loop(within_epoch)
        _loops.add(loop)
        return loop

    def _loop(self, within_epoch: bool) -> Iterator[Any]:
        self._prepare(within_epoch)
        with self._ending if self._saver is not None else contextlib.nullcontext():
            self._turns.start()
            self._between = True
            made = self._made
            try:
                while self.step < self.total_steps:
                    batch = self._next(within_epoch)
                    if batch is OVER:
                        if self._made == made:
                            self._tell_of_none()
                        self._end_epoch()
                        return
                    self._in_step, self._between = True, False
                    yield batch
                    self._in_step, self._between = False, True
                    self._count()
                    self._end_turn(ends_epoch=within_epoch and (self._feed.used_up or self.step >= self.total_steps))
                self._end_steps(within_epoch)
            finally:  # left early, too
                self._between = False
                if self._in_step and os.getpid() == self._process:
                    self._left(batch)
                self._turns.stop()
                if self._saver is not None:
                    self._saver.wait_written()
                    self._ending.safe = self._is_saved

    def _prepare(self, within_epoch: bool) -> None:
        """The loop begins, or goes on. In an epoch what the script has done so far is done again by who resumes at its
        beginning: that is not saved, but after the first step."""
        if not within_epoch:
            self._end_if_asked()
        if self._saver is not None:
            self._saver.begins(over=self.step >= self.total_steps)
        self._forgotten.begin(tells=self._gang.leads)
        if self._pace is not None:
            self._pace.restart()
        if self._balance is not None:
            self._balance.start()
        if self._peeked:
            self._peeked = False
            if self._gang.leads:
                say(
                    "WARNING: a batch was taken from the loop before it began, and no step was made of it: it is one "
                    "that the training does not see. To look at one, ask the loader"
                )
        other = _in_its_loop_last.pop() if _in_its_loop_last else None
        if self._made and other is not None and other is not self and other.unfinished:
            self._ending.tell_of_several()
        _in_its_loop_last.add(self)

    def _end_steps(self, in_epoch: bool) -> None:
        """All are made; in an epoch the training is over when its turn is."""
        if in_epoch and not self._stopped:
            self._end_epoch()
        else:
            self._finish()

    def _end_epoch(self) -> None:
        """Its batches are used up, and what else the script does with it follows."""
        self._whole = self._turns.ripe()
        self._ending.later = True
        self._settings.end_epoch()
        if self._saver is None:
            return
        self._saver.wait_written()
        if self._ending.asked and self._whole and self._gang.world == 1:
            self._save_asked()
        elif self.step >= self.total_steps and (self._saver.saved_step or 0) < self.step - 1:
            self._try_save(wait=True, ends=True)  # before the last step there were gradients that were not used yet

    def _left(self, batch: Any) -> None:
        """The loop was left within a turn, by ``break``. What its optimizer step has made is a step like others; where
        nothing has been done, the batch is the next one again."""
        self._in_step = False
        self._settings.end_epoch()
        stepped, wanted = self._turns.stepped, self._wanted
        self._left_epoch = stepped and self._in_epoch
        untouched = not stepped and self._turns.untouched
        if stepped:
            self._count()
        elif self.step == 0 and not (wanted or self._in_epoch):
            self._peeked = True
        elif self._balance is None:
            if untouched:
                self._feed.give_back(batch)
            else:
                self._feed.pass_over()
        if self._stopped:  # before this turn's step, it may be
            self.total_steps = self.step
        self._whole = stepped or (untouched and self._turns.ripe())
        if self._saver is not None:
            self._save_left(wanted)

    def _save_left(self, wanted: bool) -> None:
        """What a turn that was left has made is saved if it was the last one, or if that is asked for."""
        assert self._saver is not None
        asked = self._ending.asked
        self._ending.later = 0 < self.step < self.total_steps and (self._whole or wanted or not asked)
        if self._whole and self.step >= self.total_steps and self._gang.world == 1:
            self._end_steps(self._in_epoch)
        elif not (wanted or self._end_unsaved or (self._whole and asked)):
            return
        elif self._gang.world == 1:
            self._save_asked()
        elif self._gang.leads and (wanted or self._end_unsaved):
            self._wanted = False
            say(
                "WARNING: nothing was saved: the loop was left in the turn in which run.save() or run.stop() was "
                "called, and several workers save together, when a turn is over or, on all of them, behind the loop"
            )

    def _save_asked(self) -> None:
        self._try_save(wait=True, ends=True)
        if self._ending.asked and self._is_saved:
            say(
                f"told to end (SIGTERM) as the loop was left: step {self.step} is saved, and saved again with what the "
                "script does until it enters the loop again, if there is time"
            )

    def _end_if_asked(self) -> None:
        """Told to end since the loop was left: what the script has done since belongs to it. Several workers, and
        gradients that are not used yet, wait for the end of a turn."""
        if self._ending.asked and self._whole and self._gang.world == 1:
            self._try_save(wait=True, ends=True)
            self._end()

    def _end(self) -> None:
        if self._is_saved and self._gang.leads:
            say(f"told to end (SIGTERM); step {self.step} is saved")
        die()

    def _count(self) -> None:
        self.step += 1
        self._made += 1
        self._turns.end()
        self._link.count(self.step)
        if self._gang.leads and self._saver is not None:
            self._forgotten.turn(self._made)

    def _finish(self) -> None:
        """The end of the loop: its last step is safe before the process goes on."""
        if self._saver is not None:
            if not self._is_saved:
                self._try_save(wait=True, ends=True)
            self._saver.ended()
        self._gang.leave_together()

    def _next(self, within_epoch: bool) -> Any:
        """The next batch; a source of one's own can ask for this worker's share before it gives one."""
        if self._balance is None:
            return self._feed.next(within_epoch)
        self._balance.begin(self._feed.turn)
        batch = self._feed.next(within_epoch)
        if batch is not OVER and self._feed.global_size is not None:
            self._balance.begin(self._feed.turn - 1, self._feed.global_size)
        return batch

    def _end_turn(self, ends_epoch: bool) -> None:
        """A save behind an epoch's last step waits for the end of the epoch, but where the process is told to end."""
        ripe = self._ripe_to_end if ends_epoch else self._turns.ripe
        if self._balance is None:
            if self._pace is not None:
                self._pace.wait()
            self._between_steps(ripe)
            return
        self._balance.end()
        with self._balance.apart():
            self._between_steps(ripe)
            if self.step < self.total_steps:
                self._balance.rebalance(self._feed.turn, self.step)

    def _ripe_to_end(self) -> bool:
        """One worker sees by itself that the epoch is over, and saves then."""
        return self._ending.asked and self._gang.world > 1 and self._turns.ripe()

    def save(self) -> None:
        """Save. Within the loop: when this step is done or, in a training of one worker, the loop is left; rank 0's
        call counts. In a turn of :meth:`epochs`, behind its batches: when that turn is over. Outside: at once, on all
        ranks together.

        Raises CheckpointError if saving at once fails; what was saved before is as it was. A save at the end of a step
        that fails is told on stderr, and the training goes on.
        """
        if self._saver is None:
            raise CheckpointError("nowhere to save: outside a Slurm job give train(..., directory=...)")
        if self._in_step or self._between or self._in_epoch:  # between: called by a signal's handler
            self._wanted = True
        else:
            self._save(wait=True)
            if self._gang.broadcast(self._ending.asked):
                self._end()

    def stop(self) -> None:
        """End the training here, as early stopping does: it is saved as one that is over, and no later run of the job
        makes another step. Within the loop this step is the last one, and the loop ends by itself; outside it was the
        last one made, and is saved at once. All workers call it in the same turn.

        Raises CheckpointError if saving at once fails.
        """
        self.total_steps = self.step + self._in_step
        self._stopped = self._end_unsaved = True
        self._link.begin(self.step, self.total_steps, self._spec.samples_per_step)
        if self._saver is not None and not (self._in_step or self._between):
            self._save(wait=True)
            self._finish()

    def _save(self, wait: bool) -> None:
        assert self._saver is not None
        self._wanted = False
        if self._gang.leads:
            self._forgotten.before_save(wait)
        flush(files=wait)
        plain = {"step": self.step, "user": self.state, "plain": self.also, "position": self._feed.position()}
        plain |= {"samples_per_step": self._samples_per_step, "settings": self._settings.saved()}
        plain |= {"stopped": self._stopped, "left_epoch": self._left_epoch, **self._conditions.saved()}
        try:
            self._saver.save(self.step, self._parts, plain, self._feed.random_states(), wait)
            self._end_unsaved = False
        finally:
            self._trigger.saved()

    def _try_save(self, wait: bool, ends: bool = False) -> None:
        try:
            self._save(wait)
        except CheckpointError as error:
            if self._gang.leads:
                say(str(error) if ends else f"{error}; the training goes on")

    def _between_steps(self, ripe: Callable[[], bool], looks: bool = False) -> None:
        """Do what is due at a step boundary, the same on all ranks."""
        if self._saver is None:
            return
        before_last = self._in_epoch and self.step == self.total_steps - 1
        decision = self._trigger.due(self.step, self._wanted or before_last, ripe, looks or before_last)
        if decision is not None:
            self._try_save(decision.awaited, decision.ends)
            self._trigger.follow(decision, self.step, safe=self._is_saved)

    def _resume(self) -> None:
        if self._saver is None:
            return
        began = time.monotonic()
        resumed = self._saver.resume(self._parts)
        if resumed is None:
            return
        found, content = resumed
        self._apply(Resumed(found, content, self._gang))
        self._link.loaded(found.step, found.generation, time.monotonic() - began)
        self._forgotten.loaded()
        if self._gang.leads:
            say(f"resumed from {found.name}")

    def _apply(self, resumed: Resumed) -> None:
        saved = put_back(resumed.saved, self._parts)
        if self._gang.leads:
            resumed.tell(self._conditions)
        self._drawn = saved.get("drawn", self._drawn)
        restore(self._parts, saved, resumed.found.path, ADVICE, self.also, self._gang.leads)
        self.step = saved["step"]
        self._left_epoch = self._has_left = saved.get("left_epoch", False)
        if saved.get("stopped"):
            self._stopped, self.total_steps = True, self.step
            if self._gang.leads:
                say(f"this training was stopped at step {self.step} by run.stop(): no further step is made")
        refill(self.state, saved["user"])
        position = resumed.position(self._samples_per_step, kept_alike=self._spec.samples_per_step is not None)
        self._settings.resumed(saved.get("settings", {}), within_epoch=position["index"] > 0)
        self._feed.restore(position, resumed.mine)

    @property
    def _conditions(self) -> Conditions:
        return Conditions(classes_of(self._parts), *self._feed.made_of, self._drawn)

    @property
    def _samples_per_step(self) -> int | None:
        """Of all workers together; None where only the loader knows."""
        own = self._feed.batch_size
        return self._spec.samples_per_step or (own * self._gang.world if own else None)
