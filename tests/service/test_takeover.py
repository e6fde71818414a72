"""What the controller of another host makes of the jobs that one before it has placed."""

from __future__ import annotations

import contextlib
import shutil
import socket
from dataclasses import replace

import pytest

from slurm_hadar.comment import read
from slurm_hadar.controller.act.release import release_all
from slurm_hadar.controller.agents.notes import KEY_FILE, Seal, load_key
from slurm_hadar.controller.journal import Journal
from slurm_hadar.errors import SlurmUnavailable
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import Daemon
from tests.service.conftest import MODEL, Site


def placed(site: Site, **asks: object) -> str:
    """A job that this host's controller has given nodes; it waits there still, as where a node has gone since."""
    job = site.slurm.submit(gpus=2, comment=MODEL, **asks)
    with site.service(once=True) as service:
        assert service.round().record.starts == 1
    waiting = replace(site.slurm.jobs[job], state=JobState.PENDING, nodes=(), start=None)
    site.slurm.jobs[job] = replace(waiting, restarts=1)
    assert waiting.req_nodes == ("v100-1",)
    del site.slurm.nodes["v100-1"]
    return job


@pytest.mark.parametrize("seen", [False, True])
def test_a_job_placed_by_the_other_host_is_steered(site: Site, seen: bool) -> None:
    """Its node list is no wish of its owner's, also where this host's journal has known the job before it was placed.
    Its shape is what Slurm shows, whatever a note that cannot be verified says."""
    there = (f"controller.state_dir={site.folder / 'there'}",)
    if seen:
        site.slurm.submit(gpus=2, comment=MODEL)
        with site.service(*there, "controller.mode=observe", once=True) as service:
            service.round()
        site.slurm.jobs.clear()
        site.slurm._submitted = 0  # noqa: SLF001 the same job, as it was
    job = placed(site)
    noted = read(site.slurm.jobs[job].comment)[0]
    forged = site.slurm.jobs[job].comment.replace("asked=2/1/", "asked=8/1/")
    assert noted.asked is not None and noted.asked[0] == 2 and "asked=8/" in forged
    site.slurm.jobs[job] = replace(site.slurm.jobs[job], comment=forged)

    with site.service(*there, once=True) as service:
        result = service.round()
    assert result.seen is not None and result.seen.snapshot.job[job].pinned is None
    assert result.seen.records[job].workers == 2
    assert site.slurm.jobs[job].nodes == ("k80-1",)


def test_a_job_outside_the_scope_is_left_to_its_controller(site: Site) -> None:
    """Which may act beside this one: it is not given back."""
    job = placed(site, user="bob")
    with site.service(f"controller.state_dir={site.folder / 'there'}", "controller.users=['alice']") as service:
        result = service.round()
    assert result.record.writes == 0 and site.slurm.jobs[job].req_nodes == ("v100-1",)


def test_a_copied_key_tells_the_shapes_too(site: Site) -> None:
    """With the other host's notes.key its notes are believed."""
    job, there = placed(site), site.folder / "there"
    there.mkdir()
    shutil.copy(site.state / KEY_FILE, there / KEY_FILE)
    changed = site.slurm.jobs[job]
    site.slurm.jobs[job] = replace(changed, num_cpus=changed.num_cpus + 3)  # as another shape has it
    note = read(changed.comment)[0]
    assert note.asked is not None
    assert Seal(site.slurm.identity(), load_key(there)).fits(job, changed.user, note.asked, note.asked_mac)
    with site.service(f"controller.state_dir={there}", once=True) as service:
        result = service.round()
    assert result.seen is not None and result.seen.records[job].cpus == note.asked[3] != changed.num_cpus + 3


@pytest.mark.parametrize("known", [False, True])
def test_release_frees_what_the_other_host_has_placed(site: Site, known: bool) -> None:
    """Also a job that this host's journal knows, and has not steered."""
    job = placed(site)
    with contextlib.closing(Journal(":memory:")) as journal:
        if known:
            with site.service(f"controller.state_dir={site.folder / 'there'}", "controller.mode=observe") as service:
                record = service.round().seen.records[job]
            journal.save_jobs([replace(record, steered=False)])
        released = release_all(site.slurm, journal, seal=Seal("elsewhere"))
    assert [r.error for r in released.results] == [None] and not site.slurm.jobs[job].req_nodes


def _primary(up: bool) -> tuple[Daemon, ...]:
    return Daemon("primary", "elsewhere", up), Daemon("backup", socket.gethostname(), True)


class TestSlowPrimary:
    """It does not answer ping for a while, in which the backup takes nothing over."""

    def test_one_that_answers_nothing_has_not_been_followed(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        """However long: only an answered round makes the backup's controller act, in the round after that."""

        def away() -> None:
            raise SlurmUnavailable("slurmctld does not answer")

        site.slurm.submit(gpus=2, comment=MODEL)
        site.daemons = _primary(True)
        with site.service() as service:
            assert service.round().record.mode == "observe"
            site.daemons = _primary(False)
            with monkeypatch.context() as patched:
                patched.setattr(site.slurm, "read", away)
                for _ in range(3):
                    assert service.round().record.skipped
            assert [service.round().record.writes for _ in range(2)] == [0, 1]
        assert [r.record.mode for r in site.rounds[-2:]] == ["observe", "act"]

    @pytest.mark.parametrize("first", [True, False])
    def test_one_that_answers_again_before_the_writes_is_left_to_act(
        self, site: Site, monkeypatch: pytest.MonkeyPatch, first: bool
    ) -> None:
        """Also where this controller has just been started."""
        site.slurm.submit(gpus=2, comment=MODEL)
        site.daemons = _primary(not first)
        with site.service() as service:
            if not first:
                service.round()
            site.daemons = _primary(False)
            if not first:
                service.round()
            read = site.slurm.read

            def back() -> object:
                site.daemons = _primary(True)
                return read()

            monkeypatch.setattr(site.slurm, "read", back)
            result = service.round()
            assert (result.record.mode, result.record.writes) == ("act", 0)
            assert service.round().record.note.startswith("standby: slurmctld acts on elsewhere")
