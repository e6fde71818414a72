"""What makes a job's directory its own where several users share the directory of submission.

What a job loads when it starts again must be what it has saved. So its directories are made for their owner alone, and
each level is looked at before it is used: a directory, no link, of this user, that nobody else may write. Where another
user's ``.hadar`` stands already the job's files go to ``.hadar-<uid>`` beside it. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import pwd
import re
import secrets
import stat
from pathlib import Path

from slurm_hadar import messages
from slurm_hadar.errors import CheckpointError
from slurm_hadar.messages import owner_of

__all__ = [
    "check_tree", "fault", "make", "place", "read_token", "token",
]  # fmt: skip

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TOKEN = re.compile(rb"([0-9a-f]{64})\n?")


def place(base: Path, job: str, cluster: str = "") -> tuple[Path, str | None]:
    """The directory of ``job`` below ``base``, and why it is not the usual one, if it is not: another user's stands
    there, or that of a job of another cluster than ``cluster``, which may be running. Nothing is made.

    A user who has a directory beside the usual one keeps to it when the usual name becomes free: copies of a forked
    job, which start one after the other, must meet. Raises CheckpointError if others have taken both names.
    """
    usual, beside = (Path(base) / home / job for home in messages.job_homes(os.geteuid()))
    why = fault(usual) or _elsewhere(usual, cluster)
    if why is None and (usual.exists() or not beside.parent.exists()):
        return usual, None
    if (worse := fault(beside)) is not None:
        raise CheckpointError(f"{worse}; set HADAR_JOB_DIR to a directory of your own")
    return beside, f"{why}: this job's files go to {beside}" if why is not None else None


def _elsewhere(directory: Path, cluster: str) -> str | None:
    """That it is a job's of another cluster; None if it is not, or nobody knows."""
    owner = owner_of(directory)
    if owner is None or not cluster or owner.cluster in ("", cluster):
        return None
    return f"{directory} is that of job {owner.job} of cluster {owner.cluster}"


def make(directory: Path) -> None:
    """Make the directory, 0700, unless it is there; see that it is the user's, from ``.hadar`` on.

    Raises CheckpointError if it is not, or where the system refuses.
    """
    base, names = _levels(directory)
    try:
        base.mkdir(parents=True, exist_ok=True)
        _descend(base, names, making=True)
    except OSError as error:
        raise CheckpointError(f"{directory} cannot be made: {error.strerror}") from error


def fault(directory: Path) -> str | None:
    """Why the directory must not be used, None if it may be or is not there. Makes nothing."""
    try:
        _descend(*_levels(directory), making=False)
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        return str(error)
    except OSError as error:
        return f"{directory} cannot be opened: {error.strerror}"
    return None


def check_tree(directory: Path, unchanged: bool = False) -> None:
    """Raises CheckpointError unless everything in the directory is the user's, and no link.

    ``unchanged``: and nobody else may have written any of it.
    """
    for path in (directory, *directory.rglob("*")):
        try:
            found = path.lstat()
        except OSError as error:
            raise CheckpointError(f"{path.name} cannot be read: {error.strerror}") from error
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            raise CheckpointError(f"{path.name} is neither a file nor a directory")
        if found.st_uid != os.geteuid():
            raise CheckpointError(f"{path.name} belongs to user {_name(found.st_uid)}")
        if unchanged and _others_write(found):
            raise CheckpointError(
                f"other users may have changed {path.name}; if you trust it: chmod -R go-w {directory}"
            )


def token(directory: Path, known: str | None = None) -> str:
    """The job's secret, made on first use and readable by its owner alone; the same in all restarts.

    One that is gone, as where old files are cleared away, is put back as it was ``known``: what it has sealed would be
    of no use without it. Raises CheckpointError if it cannot be had, or if others may have it.
    """
    make(directory)
    path = Path(directory) / messages.TOKEN_FILE
    try:
        if not os.path.lexists(path):
            _make_token(path, known or secrets.token_hex(32))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error
    return read_token(directory)


def read_token(directory: Path) -> str:
    """As :func:`token`, where it must be there."""
    path = Path(directory) / messages.TOKEN_FILE
    try:
        return _read_token(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _make_token(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
        os.link(fresh, path)  # unlike a rename it never replaces the token of a step started at the same time
    except FileExistsError:
        pass
    finally:
        fresh.unlink()


def _read_token(path: Path) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        mine = stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
        match = _TOKEN.fullmatch(file.read(100)) if mine else None
    if match is None:
        raise CheckpointError(
            f"{path} is not this job's token (64 hexadecimal digits that only you may read). Put it back if you can: "
            "without it the training begins anew, since it cannot tell its checkpoints from others'. Remove it for that"
        )
    if found.st_mode & 0o077:
        raise CheckpointError(
            f"{path} is not this job's token alone: others may read or change it. If you trust who could: "
            f"chmod 600 {path}"
        )
    return match[1].decode()


def _levels(directory: Path) -> tuple[Path, list[str]]:
    """Where the looking begins, and the levels below it: from ``.hadar`` on, or the last of another path."""
    parts = Path(directory).absolute().parts
    homes = messages.job_homes(os.geteuid())
    first = max((i for i, part in enumerate(parts) if part in homes), default=len(parts) - 1)
    return Path(*parts[:first]), list(parts[first:])


def _descend(base: Path, names: list[str], making: bool) -> None:
    """Each level is opened within the one above, so that what was looked at is what is used next."""
    descriptor = os.open(base, _DIRECTORY)
    try:
        for name in names:
            base = base / name
            if making:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=descriptor)
            inner = _enter(descriptor, name, base)
            os.close(descriptor)
            descriptor = inner
    finally:
        os.close(descriptor)


def _enter(above: int, name: str, path: Path) -> int:
    """The directory opened, once it was found good. One that others may write is closed to them."""
    found = os.stat(name, dir_fd=above, follow_symlinks=False)
    if stat.S_ISDIR(found.st_mode) and found.st_uid != os.geteuid():
        raise CheckpointError(f"{path} belongs to user {_name(found.st_uid)}")
    try:
        inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=above)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise CheckpointError(f"{path} is a link or a file where a directory belongs") from error
        raise
    try:
        found = os.fstat(inner)
        if found.st_uid != os.geteuid():
            raise CheckpointError(f"{path} belongs to user {_name(found.st_uid)}")
        if _others_write(found):
            os.fchmod(inner, stat.S_IMODE(found.st_mode) & ~0o022)
    except BaseException:
        os.close(inner)
        raise
    return inner


def _others_write(found: os.stat_result) -> bool:
    """A group that is the user's alone, as many systems make one for each user, is nobody else."""
    if found.st_mode & 0o002:
        return True
    return bool(found.st_mode & 0o020) and not _is_private(found.st_gid)


def _is_private(group_id: int) -> bool:
    try:
        user, group = pwd.getpwuid(os.geteuid()), grp.getgrgid(group_id)
    except KeyError:
        return False
    return (user.pw_gid, user.pw_name) == (group_id, group.gr_name) and not set(group.gr_mem) - {user.pw_name}


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
