"""``make chaos``: faults on purpose, for as long as one likes.

    python -m benchmarks.chaos --minutes 60 --seed 1 [--json F]
    python -m benchmarks.chaos --seed 17 --episodes 1        one episode again

Episode after episode, each with a seed of its own (the first one's is ``--seed``), a private Slurm, a controller,
jobs with known results, and faults whose schedule is a function of the seed. Exit code 1 if anything did not hold.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from benchmarks.campaigns.episodes import play_all, verdict, violations
from benchmarks.chaos.episode import Episode, Plan, play
from benchmarks.chaos.schedule import KINDS


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="Begin no episode after this time.")
@click.option("--episodes", type=int, help="So many episodes instead, whatever time they take.")
@click.option("--seed", default=1, show_default=True, help="Of the first episode; the next ones count on from it.")
@click.option("--faults", default=14, show_default=True, help="Faults in an episode.")
@click.option("--seconds", default=90.0, show_default=True, help="Time within which an episode's faults begin.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(list(KINDS)), help="Only these faults.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write the report as JSON too.")
@click.option("--keep", type=click.Path(path_type=Path), default=Path("chaos-failures"), show_default=True,
              help="Folder for what is left of episodes in which something did not hold.")  # fmt: skip
def main(
    minutes: float,
    episodes: int | None,
    seed: int,
    faults: int,
    seconds: float,
    kinds: tuple[str, ...],
    report: Path | None,
    keep: Path,
) -> None:
    """Break a real controller on a real private Slurm, and check what must hold."""

    def one(number: int, seed: int) -> Episode:
        plan = Plan.of(seed, seconds, faults, kinds or tuple(KINDS))
        click.echo(f"episode {number}, seed {plan.seed}, policy {plan.policy}")
        return play(plan, click.echo, keep.resolve())

    played = play_all(one, _one, _summary, seed=seed, minutes=minutes, episodes=episodes, report=report)
    click.echo(_text(_summary(played)))
    sys.exit(1 if any(e.problems for e in played) else 0)


def _one(episode: Episode) -> str:
    ends = f", {len(episode.controller_ends)} ends by itself" if episode.controller_ends else ""
    lines = [
        f"  {episode.seconds:.0f} s, {sum(episode.injected.values())} faults, {episode.completed} of {episode.jobs} "
        f"jobs completed, {episode.restarts} restarts, {episode.changes} changes sent, controller started "
        f"{episode.controller_starts} times{ends}; {len(episode.problems)} violations"
    ]
    return "\n".join([*lines, *violations(episode, "chaos")])


def _summary(played: list[Episode]) -> dict[str, Any]:
    injected: Counter[str] = sum((e.injected for e in played), Counter())
    totals = ("looks", "changes", "jobs", "completed", "restarts", "again", "controller_starts", "messages")
    return {
        "hours": round(sum(e.seconds for e in played) / 3600, 3),
        "episodes": len(played),
        "seeds": [e.seed for e in played],
        "faults": sum(injected.values()),
        "faults_by_kind": {kind: injected.get(kind, 0) for kind in KINDS},
        **{name: sum(getattr(e, name) for e in played) for name in totals},
        "violations": sum(len(e.problems) for e in played),
        "violated_seeds": [e.seed for e in played if e.problems],
        "small_disks": all(e.small_disks for e in played),
        "fake_clock": all(e.fake_clock for e in played),
        "by_episode": [e.as_dict() for e in played],
    }


def _text(summary: dict[str, Any]) -> str:
    lines = [
        f"{summary['hours']:.2f} hours, {summary['episodes']} episodes, {summary['faults']} faults, "
        f"{summary['jobs']} jobs ({summary['completed']} completed, {summary['restarts']} restarts, {summary['again']} "
        f"run again by Slurm after it had lost their end), {summary['changes']} changes sent to Slurm, "
        f"{summary['looks']} looks at the queue",
    ]
    lines += [f"  {kind:<22}{count:>5}" for kind, count in summary["faults_by_kind"].items()]
    if not summary["small_disks"]:
        lines.append("  disks were not filled: mounting small ones needs root")
    if not summary["fake_clock"]:
        lines.append("  the clock did not jump: libfaketime is not installed (apt-get install libfaketime)")
    return "\n".join([*lines, verdict(summary)])


if __name__ == "__main__":
    main()
