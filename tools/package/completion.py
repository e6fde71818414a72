"""Completion of bash, zsh and fish, as click makes it."""

from __future__ import annotations

from pathlib import Path

from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from slurm_hadar.cli.main import hadar

#: by shell: click's class, and the name that the shell looks for
SHELLS: dict[str, tuple[type[ShellComplete], str]] = {
    "bash": (BashComplete, "hadar.bash"),
    "zsh": (ZshComplete, "_hadar"),
    "fish": (FishComplete, "hadar.fish"),
}


def script(shell: str) -> str:
    """What ``shell`` loads; it asks ``hadar`` itself for the words."""
    kind = SHELLS[shell][0](hadar, {}, "hadar", "_HADAR_COMPLETE")
    # not kind.source(): that of bash looks for a bash here, which the machine that builds need not have
    return kind.source_template % kind.source_vars()


def write(folder: Path) -> list[Path]:
    """Write each shell's script into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for shell, (_, name) in SHELLS.items():
        (folder / name).write_text(script(shell))
        paths.append(folder / name)
    return paths
