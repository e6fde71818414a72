"""What the kernel tells of processes, whatever they call themselves."""

import os
import subprocess
import sys

import pytest

from slurm_hadar.procstat import stat_of

NAMED = """
import sys
open("/proc/self/comm", "wb").write(bytes.fromhex(sys.argv[1]))
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("name", [b"python", b"a b", b"a) S 1 (b", b") Z 0 0", "обучен".encode() + b"\xd0"])
def test_a_process_may_have_any_name(name: bytes) -> None:
    words = [sys.executable, "-c", NAMED, name.hex()]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        told = stat_of(process.pid)

    assert told.name == name.decode(errors="replace")
    assert told.state in "RS" and told.parent == os.getpid() and told.began >= stat_of(os.getpid()).began
    with pytest.raises(OSError, match="No such"):
        stat_of(process.pid)
