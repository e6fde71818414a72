"""``hadar config``: check the configuration, show it with where each value comes from."""

from __future__ import annotations

import shlex
import shutil

import click

from slurm_hadar.cli.common import config_options, json_option, print_json
from slurm_hadar.config import Config
from slurm_hadar.errors import ConfigError
from slurm_hadar.policies import registry
from slurm_hadar.slurm.survey import is_user

__all__ = ["config"]


@click.group()
def config() -> None:
    """Check and show the configuration."""


@config.command()
@config_options
def check(config: Config) -> None:
    """Say whether the configuration is valid: its values, the policy's parameters, and the programs that it names."""
    registry.get(config.policy.name, **config.policy.params)
    program = next(iter(shlex.split(config.hooks.moved)), "")
    if program and shutil.which(program) is None:
        raise ConfigError(f"{config.origin('hooks.moved')}: hooks.moved = {program!r}: is no program that can be run")
    for key, users in {
        "guard.exempt_users": config.guard.exempt_users,
        "controller.users": config.controller.users,
    }.items():
        for user in users:
            if not is_user(user):
                click.echo(
                    f"warning: {config.origin(key)}: {key} names {user!r}, whom this host does not know", err=True
                )
    click.echo("configuration is valid")


@config.command()
@click.option("--origin", is_flag=True, help="Also say where each value was set.")
@json_option
@config_options
def show(config: Config, origin: bool, as_json: bool) -> None:
    """Print every setting in force."""
    values = config.flat()
    if as_json:
        print_json({k: {"value": v, "origin": config.origin(k)} if origin else v for k, v in values.items()})
        return
    for key, value in values.items():
        click.echo(f"{key} = {value!r}" + (f"    # {config.origin(key)}" if origin else ""))
