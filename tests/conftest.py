"""Fixtures shared by all tests that need a real Slurm.

``slurm_cluster`` (session): a running :class:`slurm_hadar.cluster.PrivateCluster` of ``v100:2x4,p100:2x4,k80:2x4``,
without plugins or accounting, shared by the whole run. It is handed out with an empty queue: jobs that a test left
behind are cancelled before the next one. Do not break it (daemons, nodes); take ``make_cluster`` for that.

``make_cluster(nodes="v100:1x2", **options)`` (function): starts a cluster of its own and takes it down after the
test, whatever happens. ``options`` are those of :class:`slurm_hadar.cluster.ClusterSpec`, such as ``plugins=True``,
``accounting=True``, ``partitions=True``, ``fastest_steps_per_s=100.0``, ``kill_wait_s=2`` or
``extra_conf=("SlurmdTimeout=5",)``.

``short_tmp``: a temporary folder with a short path, which unix sockets need; readable by all users.

``poll(condition, deadline_s=30)`` (fixture): calls ``condition`` until it returns something true, and returns that;
fails the test with its last value when the time is up (on a busy machine: three times as late).

What a cluster offers: ``.run(["sbatch", ...])`` (CompletedProcess with text; ``input=``, ``check=``, ``env=``,
``cwd=``), ``.env`` (for subprocess), ``.conf``, ``.directory``, ``.cluster_name``, ``.nodes`` (each with ``.name`` and
``.gpus``), ``.node_states()`` (each with ``.state``, ``.gpus``, ``.gpus_used``), ``.wait_idle(deadline_s)``,
``.kill_slurmctld()``, ``.stop_slurmctld()``, ``.start_slurmctld()``, ``.stop_slurmd(node, kill=True)``,
``.start_slurmd(node)``, ``.processes()``, ``.down()``.

Mark such tests with ``@pytest.mark.slurm``.

What hypothesis draws is said in ``tests/profiles.py``.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from coverage import Coverage
from hypothesis import settings

from slurm_hadar.cluster import ClusterSpec, PrivateCluster, processes, up
from slurm_hadar.cluster import down as take_down
from tests import profiles  # noqa: F401 - it registers them
from tests.selection import NAMED, may_choose

# of the live tests, two minutes and more each; of the trainings, half a minute
_LONGEST = (
    "test_moved.py", "test_forks.py", "test_jobs.py", "test_training.py", "test_attack.py",
    "test_saver.py", "test_callbacks.py", "test_habits.py", "test_browser.py",
)  # fmt: skip

_BUSY = 3  # deadlines are those of a quiet machine
_CHILDREN = "COVERAGE_PROCESS_CONFIG"  # by which coverage tells child processes to measure themselves

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


def pytest_configure(config: pytest.Config) -> None:
    """Temporary folders are where saving takes no time and gone with the run, unless the caller names another TMPDIR:
    programs that are killed leave theirs."""
    if "TMPDIR" in os.environ:
        return
    ours = Path(tempfile.mkdtemp(prefix="hdr-tests-", dir=_folder_of_folders()))
    ours.chmod(0o1777)  # tests act as other users
    os.environ["TMPDIR"] = tempfile.tempdir = str(ours)
    config.add_cleanup(lambda: shutil.rmtree(ours, ignore_errors=True))


def _folder_of_folders() -> str:
    """Memory, where there is room in it and programs may run there: a test that saves else waits for the disk most of
    its time."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK) or os.statvfs(memory).f_flag & os.ST_NOEXEC:
        return "/tmp"
    return str(memory) if shutil.disk_usage(memory).free > 4 * 2**30 else "/tmp"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which no test can be chosen are not read."""
    if not config.option.markexpr or collection_path.suffix != ".py":
        return None
    return None if may_choose(config.option.markexpr, collection_path.read_text()) else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files go first, lest all others be done and wait for them. Whoever uses a cluster must say so, lest
    it run beside others, and each file must name its markers, lest it not be read."""
    items.sort(key=lambda item: _LONGEST.index(item.path.name) if item.path.name in _LONGEST else len(_LONGEST))
    texts = {path: path.read_text() for path in {item.path for item in items}}
    for item in items:
        markers = {marker.name for marker in item.iter_markers()} & NAMED
        if {"slurm_cluster", "make_cluster"} & set(getattr(item, "fixturenames", ())) and "slurm" not in markers:
            raise pytest.UsageError(f"{item.nodeid} uses a Slurm cluster: mark it with @pytest.mark.slurm")
        for marker in markers:
            if f"mark.{marker}" not in texts[item.path]:
                raise pytest.UsageError(f"{item.nodeid}: its file does not name its marker pytest.mark.{marker}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Drawn examples and thorough tests are not measured for coverage: to trace them takes as long again, and lines
    that no lighter case reaches, which is written out, want one."""
    unmeasured = any(item.get_closest_marker(name) for name in ("hypothesis", "thorough"))
    measured = Coverage.current() if unmeasured else None
    told = os.environ.pop(_CHILDREN, None) if unmeasured else None
    if measured is not None:
        measured.stop()
        # nor is it told at each start what was imported before: it looks at all modules, and PyTorch has odd ones
        measured._warn_preimported_source = False  # noqa: SLF001 - there is no public way
    try:
        return (yield)
    finally:
        if measured is not None:
            measured.start()
        if told is not None:
            os.environ[_CHILDREN] = told


def _poll(condition: Callable[[], Any], deadline_s: float = 30.0, every_s: float | None = None) -> Any:
    began = time.monotonic()
    while not (value := condition()):
        waited_s = time.monotonic() - began
        if waited_s >= deadline_s * _BUSY:
            pytest.fail(f"not within {deadline_s * _BUSY:g} s; last value: {value!r}")
        # a condition is often a command of Slurm's, and what has taken long need not be seen at once
        time.sleep(min(max(0.05, waited_s / 20), 0.5) if every_s is None else every_s)
    return value


@pytest.fixture(scope="session")
def poll() -> Callable[..., Any]:
    """Call a condition until it is true, with a deadline."""
    return _poll


def _short_folder() -> Path:
    # pytest's own tmp_path is too long for unix sockets, and closed to other users
    folder = Path(tempfile.mkdtemp(prefix="hdr-", dir=_folder_of_folders()))
    folder.chmod(0o755)
    return folder


@pytest.fixture
def short_tmp() -> Iterator[Path]:
    """A temporary folder with a short path."""
    folder = _short_folder()
    yield folder
    for entry in folder.iterdir():
        # a start that a test expected to fail, and did not
        processes.stop_all(entry)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def _session_cluster() -> Iterator[PrivateCluster]:
    folder = _short_folder()
    try:
        with up(ClusterSpec(name="session", directory=folder / "c")) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm_cluster(_session_cluster: PrivateCluster) -> PrivateCluster:
    """The shared cluster, with an empty queue and all nodes idle."""
    return _empty(_session_cluster)


@pytest.fixture
def make_cluster() -> Iterator[Callable[..., PrivateCluster]]:
    """A factory of clusters that are taken down after the test."""
    yield from _factory()


@pytest.fixture(scope="module")
def make_module_cluster() -> Iterator[Callable[..., PrivateCluster]]:
    """The same for clusters that the tests of a file share, which are taken down after the last of them."""
    yield from _factory()


@pytest.fixture(scope="session")
def empty() -> Callable[[PrivateCluster], PrivateCluster]:
    """Cancel whatever a test has left in a cluster, and wait until all of its nodes are idle."""
    return _empty


def _empty(cluster: PrivateCluster) -> PrivateCluster:
    if left := cluster.run(["squeue", "-h", "-o", "%A"]).stdout.split():  # other users' too
        cluster.run(["scancel", "--quiet", *left], check=False)
        cluster.run(["scancel", "--quiet", "--signal=KILL", *left], check=False)
    cluster.wait_idle(60)
    return cluster


def _factory() -> Iterator[Callable[..., PrivateCluster]]:
    folders: list[Path] = []

    def make(nodes: str = "v100:1x2", **options: Any) -> PrivateCluster:
        folder = _short_folder()
        folders.append(folder)
        return up(ClusterSpec(nodes=nodes, directory=folder / "c", **options))

    yield make
    for folder in folders:
        if (folder / "c").exists():
            take_down(directory=folder / "c")
        shutil.rmtree(folder, ignore_errors=True)
