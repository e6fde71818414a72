"""The seal on what the controller notes where users can write: a MAC by a key that the controller alone has.

``asked=`` in a job's comment tells a later controller what the job's owner asked of Slurm, and with Operator rights
that is what the job is given back. A user may write any comment, so the note counts with its seal only, and the seal
fits this cluster, this job, this user and these numbers.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar.errors import StoreError

__all__ = ["KEY_FILE", "Seal", "asked_mac", "load_key"]

KEY_FILE = "notes.key"
_KEY = re.compile(rb"([0-9a-f]{64})\n")


def asked_mac(key: bytes, identity: str, job_id: str, user: str, shape: tuple[int, int, int, int]) -> str:
    """The seal of ``asked=`` as 32 hexadecimal digits.

    ``identity`` tells this cluster from others with the same job ids; ``shape``: GPUs, nodes, tasks, CPUs.
    """
    said = f"{identity} {job_id} {user} {'/'.join(map(str, shape))}"
    return hmac.new(key, said.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()[:32]


@dataclass(frozen=True)
class Seal:
    """The seal of one controller on one cluster. Without a key given it is one that ends with the process."""

    identity: str = ""
    key: bytes = field(default=secrets.token_bytes(32), repr=False)

    def of(self, job_id: str, user: str, shape: tuple[int, int, int, int]) -> str:
        """As :func:`asked_mac`."""
        return asked_mac(self.key, self.identity, job_id, user, shape)

    def fits(self, job_id: str, user: str, shape: tuple[int, int, int, int], mac: str | None) -> bool:
        """Whether the note was written by this controller about this job."""
        return mac is not None and hmac.compare_digest(self.of(job_id, user, shape), mac)


def load_key(state_dir: Path) -> bytes:
    """The controller's key, made at first use. Raises StoreError if it cannot be had, or others could have it too."""
    path = Path(state_dir) / KEY_FILE
    try:
        if not os.path.lexists(path):
            _make(path)
        return _read(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be used: {error.strerror}") from error


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            owner = os.geteuid()
            raise StoreError(f"{path}: must be user {owner}'s, and nobody else may read it; remove it for a new one")
        match = _KEY.fullmatch(file.read(100))
    if not match:
        raise StoreError(f"{path}: holds no key; remove it for a new one")
    return bytes.fromhex(match[1].decode())


def _make(path: Path) -> None:
    fresh = path.with_name(f".{KEY_FILE}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(fresh, path)  # unlike a rename it never replaces the key of a controller started at the same time
    except FileExistsError:
        pass
    finally:
        fresh.unlink(missing_ok=True)
