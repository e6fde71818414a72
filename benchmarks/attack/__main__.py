"""``make attack``: hostile users on purpose, for as long as one likes.

    python -m benchmarks.attack --minutes 60 --seed 1 [--json F]
    python -m benchmarks.attack --seed 17 --episodes 1        one episode again

Episode after episode, each with a seed of its own (the first one's is ``--seed``), a private Slurm with accounting,
limits, licences and reservations, a controller with an operator's rights or a plain user's, honest jobs, and hostile
users whose deeds are drawn from the seed. Exit code 1 if anything did not hold. Needs root, to be several users.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import click

from benchmarks.attack.episode import Episode, Plan, play
from benchmarks.attack.people import may_act_as_others
from benchmarks.campaigns.episodes import play_all, verdict, violations


@click.command()
@click.option("--minutes", default=10.0, show_default=True, help="Begin no episode after this time.")
@click.option("--episodes", type=int, help="So many episodes instead, whatever time they take.")
@click.option("--seed", default=1, show_default=True, help="Of the first episode; the next ones count on from it.")
@click.option("--seconds", default=120.0, show_default=True, help="Time of an episode's deeds.")
@click.option("--json", "report", type=click.Path(path_type=Path), help="Write the report as JSON too.")
@click.option("--keep", type=click.Path(path_type=Path), default=Path("attack-failures"), show_default=True,
              help="Folder for what is left of episodes in which something did not hold.")  # fmt: skip
def main(minutes: float, episodes: int | None, seed: int, seconds: float, report: Path | None, keep: Path) -> None:
    """Let hostile users loose on a real controller on a real private Slurm, and check what must hold."""
    if not may_act_as_others():
        raise click.ClickException("only root can act as several users; run this as root")

    def one(number: int, seed: int) -> Episode:
        plan = Plan.of(seed, seconds)
        plug_in = "with" if plan.plugins else "without"
        click.echo(f"episode {number}, seed {plan.seed}: {plan.regime} rights, {plan.policy}, {plug_in} plug-in")
        return play(plan, click.echo, keep.resolve())

    played = play_all(one, _one, _summary, seed=seed, minutes=minutes, episodes=episodes, report=report)
    click.echo(_text(_summary(played)))
    sys.exit(1 if any(e.problems for e in played) else 0)


def _one(episode: Episode) -> str:
    lines = [
        f"  {episode.seconds:.0f} s, {sum(episode.deeds.values())} deeds ({sum(episode.refused.values())} more refused "
        f"by Slurm), {episode.honest} honest jobs, {episode.changes} changes sent, longest wait beside a free GPU "
        f"{episode.longest_wait_s:g} s, controller started {episode.controller_starts} times; "
        f"{len(episode.problems)} violations"
    ]
    return "\n".join([*lines, *violations(episode, "attack")])


def _summary(played: list[Episode]) -> dict[str, Any]:
    deeds: Counter[str] = sum((e.deeds for e in played), Counter())
    refused: Counter[str] = sum((e.refused for e in played), Counter())
    totals = ("looks", "misses", "changes", "messages", "honest", "controller_starts")
    return {
        "hours": round(sum(e.seconds for e in played) / 3600, 3),
        "episodes": len(played),
        "seeds": [e.seed for e in played],
        "deeds": sum(deeds.values()),
        "deeds_by_kind": dict(sorted(deeds.items())),
        "refused_by_kind": dict(sorted(refused.items())),
        **{name: sum(getattr(e, name) for e in played) for name in totals},
        "longest_wait_s": max(e.longest_wait_s for e in played),
        "violations": sum(len(e.problems) for e in played),
        "violated_seeds": [e.seed for e in played if e.problems],
        "as_itself": all(e.as_itself for e in played),
        "by_episode": [e.as_dict() for e in played],
    }


def _text(summary: dict[str, Any]) -> str:
    kinds = sorted({*summary["deeds_by_kind"], *summary["refused_by_kind"]})
    lines = [f"  {'deed':<48}{'done':>6}{'refused':>9}"]
    lines += [
        f"  {k:<48}{summary['deeds_by_kind'].get(k, 0):>6}{summary['refused_by_kind'].get(k, 0):>9}" for k in kinds
    ]
    if not summary["as_itself"]:
        lines.append("  the controller ran as root, only its calls to Slurm as its user, who can run no Python here")
    lines.append(
        f"{summary['hours']:.2f} hours, {summary['episodes']} episodes, {summary['deeds']} deeds, "
        f"{summary['messages']} messages, {summary['honest']} honest jobs, {summary['changes']} changes sent to Slurm, "
        f"{summary['looks']} looks at the queue, longest wait beside a free GPU {summary['longest_wait_s']:g} s"
    )
    return "\n".join([*lines, verdict(summary)])


if __name__ == "__main__":
    main()
