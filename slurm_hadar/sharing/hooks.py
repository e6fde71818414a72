"""PyTorch's global hooks, registered in a script that knows nothing of turns (:mod:`slurm_hadar.sharing.member`)."""

from __future__ import annotations

import os
from typing import Any

from slurm_hadar.sharing.member import member

__all__ = ["register"]


def register() -> None:
    """Once a process, after ``torch.optim.optimizer`` has been imported. Needs PyTorch 2.1."""
    import torch  # not yet whole: its names are looked up when a hook fires
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers

    def before_forward(module: Any, _args: Any) -> None:
        if not torch.compiler.is_compiling() and (mine := member()) is not None:
            mine.before_forward(module, torch.is_grad_enabled())

    def after_forward(module: Any, _args: Any, _output: Any) -> None:
        if not torch.compiler.is_compiling() and (mine := member()) is not None:
            mine.after_forward(module)

    def before_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if (mine := member()) is not None:
            mine.before_step()

    def after_step(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if (mine := member()) is not None:
            mine.after_step()

    modules.register_module_forward_pre_hook(before_forward)
    modules.register_module_forward_hook(after_forward, always_call=True)
    optimizers.register_optimizer_step_pre_hook(before_step)
    optimizers.register_optimizer_step_post_hook(after_step)
    if os.environ.get("HADAR_SHARE_PERSISTENT") or os.environ.get("HADAR_SHARE_EPHEMERAL"):
        modules.register_module_parameter_registration_hook(_before_parameter)


def _before_parameter(_module: Any, _name: str, _parameter: Any) -> None:
    """Who tells its memory waits for it before it takes it."""
    if (mine := member()) is not None:
        mine.join()
