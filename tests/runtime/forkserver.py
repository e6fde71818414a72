"""Starts scripts by forking a process that has imported PyTorch already: importing takes longer than most of them run.

As the server (``python forkserver.py MODULE ...``) it imports the modules, then forks a child for each line of its
input, ``{"script": ..., "arguments": [...], "env": {...}, "out": FILE, "err": FILE}``, and says on its output which pid
was started and which ended how. A child is as a fresh process that has imported the modules and done nothing else.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parents[2]
USUAL = ("torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.utils.data", "slurm_hadar.runtime.training")


class Script:
    """One that was started; what is asked of it is named as in ``subprocess.Popen``."""

    def __init__(self, out: Path, err: Path) -> None:
        self.pid = 0
        self.returncode: int | None = None
        self.ended = threading.Event()
        self._out, self._err = out, err

    def wait(self, timeout: float | None = None) -> int | None:
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired(f"script {self.pid}, which was here:\n{self._where()}\n", timeout or 0.0)
        return self.returncode

    def _where(self) -> str:
        """What it has written, and at the end where its threads and those of its children are."""
        pids = [self.pid]
        with contextlib.suppress(OSError):  # one that ends at this moment
            for thread in Path(f"/proc/{self.pid}/task").iterdir():
                pids += map(int, (thread / "children").read_text().split())
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGQUIT)
            time.sleep(0.5)  # it writes, and nothing tells when it has
        return self._err.read_text()

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it ends at this moment
                os.kill(self.pid, signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it wrote, once it has ended."""
        self.wait(timeout)
        return self._out.read_text(), self._err.read_text()


class ForkServer:
    """A server that has imported the usual modules and ``modules``; started when it is first asked."""

    def __init__(self, *modules: str) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR", "RANK", "WORLD", "MASTER"))}
        env = {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        argv = [sys.executable, __file__, *USUAL, *modules]
        self._process = subprocess.Popen(argv, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._started: dict[int, Script] = {}
        self._news = threading.Condition()
        self._pid: int | None = None
        self._asking = threading.Lock()
        threading.Thread(target=self._listen, daemon=True).start()

    def start(self, script: str, *arguments: str, env: dict[str, str], out: Path, err: Path) -> Script:
        """Run the text of a script with these arguments and nothing but these variables."""
        made = Script(out, err)
        request = {"script": script, "arguments": arguments, "env": env, "out": str(out), "err": str(err)}
        with self._asking, self._news:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            assert self._news.wait_for(lambda: self._pid is not None, 120), "the fork server does not answer"
            assert self._pid is not None
            made.pid, self._pid = self._pid, None
            self._started[made.pid] = made
            self._news.notify_all()
        return made

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(300)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            news = json.loads(line)
            with self._news:
                if "started" in news:
                    self._pid = news["started"]
                    self._news.notify_all()
                    continue
                self._news.wait_for(lambda pid=news["ended"]: pid in self._started)  # type: ignore[misc]
                ended = self._started.pop(news["ended"])
                ended.returncode = news["code"]
                ended.ended.set()


def _serve(modules: list[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    gc.freeze()  # what goes on in a training is looked for among all objects: not among these
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    requests = b""
    while True:
        ready, _, _ = select.select([0, read_end], [], [])
        if read_end in ready:
            os.read(read_end, 4096)
            _reap()
        if 0 not in ready:
            continue
        data = os.read(0, 1 << 16)
        if not data:
            return
        *lines, requests = (requests + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                _be(request)
            _tell(started=pid)


def _be(request: dict[str, Any]) -> NoReturn:
    """In the child: be the script, to the end of its threads and its exit functions. What Python does after that only
    gives PyTorch's memory back piece by piece."""
    code = 1
    try:
        _run(request)
        code = 0
    except SystemExit as wish:
        code = wish.code if isinstance(wish.code, int) else int(wish.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way
        atexit._run_exitfuncs()  # noqa: SLF001 - there is no public way
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(request: dict[str, Any]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    faulthandler.register(signal.SIGQUIT)
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv[:] = ["-c", *request["arguments"]]
    exec(compile(request["script"], "<script>", "exec"), {"__name__": "__main__"})


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell(ended=pid, code=os.waitstatus_to_exitcode(status))


def _tell(**news: int) -> None:
    print(json.dumps(news), flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])
