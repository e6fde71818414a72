"""Counts optimizer steps of an unmodified script, and has it take turns where a GPU is shared.

Python runs this file at its start, before the script. It waits for ``torch.optim.optimizer`` to be imported (and
costs nothing if it never is), then registers global hooks.
The environment's own ``sitecustomize``, if there is one, is run as if this file were not here.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_TARGET = "torch.optim.optimizer"


class _Finder:
    """Lets the import of one module happen as ever, and then registers the hook."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != _TARGET:
            return None
        sys.meta_path.remove(_Finder)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                register(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def register(module: ModuleType) -> None:
    """Hook into ``torch.optim.optimizer``, which has been imported."""
    add = getattr(module, "register_optimizer_step_post_hook", None)
    if add is None:
        _say("this PyTorch is too old to count steps or to take turns (2.1 or later is needed)")
        return
    if os.environ.get("HADAR_RUN_DIR"):
        import _hadar_progress  # type: ignore[import-not-found]

        add(_hadar_progress.count_step)
    if os.environ.get("HADAR_SHARE"):
        _take_turns()


def _say(line: str) -> None:
    try:  # noqa: SIM105  # a script's own imports are not to be more than they must
        # past Python's buffer: with what stays there and cannot be written, a script ends with status 120
        os.write(sys.stderr.fileno(), ("hadar: %s\n" % line).encode())  # noqa: UP031
    except (OSError, ValueError, AttributeError):  # a full disk, or a closed stream: no reason to end the script
        pass


def _take_turns() -> None:
    """The package is the one that this file belongs to, also where the script's own Python has none."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(_HERE)))  # noqa: PTH120
    sys.path.append(root)
    try:
        from slurm_hadar.sharing import hooks

        hooks.register()
    except Exception as error:  # of whatever Python and PyTorch this is
        _say("this job takes no turns on the shared GPU: %s" % error)  # noqa: UP031
    finally:
        del sys.path[len(sys.path) - 1 - sys.path[::-1].index(root)]


def _run_next_sitecustomize() -> None:
    """Run the sitecustomize that this one hides."""
    rest = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("HADAR_RUN_DIR"):
    import _hadar_progress  # noqa: F401
if os.environ.get("HADAR_RUN_DIR") or os.environ.get("HADAR_SHARE"):
    sys.meta_path.insert(0, _Finder)
sys.path[:] = [p for p in sys.path if os.path.abspath(p or ".") != _HERE]  # noqa: PTH100
_run_next_sitecustomize()
