"""What a step is given of the job's environment, and whether it runs in a container. Standard library only."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from slurm_hadar.runtime.launch.srun_options import values

__all__ = ["agent_if_there", "exported", "in_container"]

# Pyxis's, and Slurm's own
_CONTAINERS = frozenset(("container", "container-image", "container-name"))
_ALL, _NOTHING = ("", "ALL"), ("NONE", "NIL")
# what the agent's own Python, wherever it is, can import there
_WHERE_THERE = (
    '"$1" "$2" "$3" "$4" "import sys; sys.path.append(\\"$0\\"); import slurm_hadar.runtime.agent" 2>/dev/null && '
    'exec "$@"; echo "hadar: the container has no slurm_hadar at $0: this runs as under srun, neither measured nor '
    'asked to save; mount $0 and $1 into it, or start the container inside: hadar-srun -- apptainer exec ..." >&2; '
    'shift 6; exec "$@"'
)


def exported(options: list[str], environ: Mapping[str, str], names: Collection[str]) -> list[str]:
    """The option that has srun hand these variables to the step too, where the owner wants others left out
    (``sbatch --export=SEED=1``, which holds for the steps of the job as well)."""
    wanted = dict(values(options)).get("export", environ.get("SLURM_EXPORT_ENV", ""))
    if wanted.partition(",")[0].upper() in _ALL or not names:
        return []
    kept = [] if wanted.upper() in _NOTHING else [wanted]
    return ["--export=" + ",".join([*kept, *sorted(names)])]


def in_container(options: list[str], environ: Mapping[str, str]) -> bool:
    """Whether srun starts the command in a container, which has files of its own."""
    return bool(environ.get("SLURM_CONTAINER")) or any(name in _CONTAINERS for name, _ in values(options))


def agent_if_there(agent: list[str], root: str) -> list[str]:
    """The agent's words, of which the last is ``--``, or none of them where it cannot start."""
    return ["/bin/sh", "-c", _WHERE_THERE, root, *agent]
