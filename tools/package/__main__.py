"""Build what is installed beside the program.

python -m tools.package man DIR            man pages
python -m tools.package completion DIR     completion of bash, zsh and fish
python -m tools.package deb DIR            slurm-hadar_VERSION_ARCH.deb; --no-bytecode: faster, and starts slower
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tools.package import PackageError, completion, deb, man


@click.group(help=__doc__)
def build() -> None:
    pass


@build.command("man")
@click.argument("folder", type=click.Path(path_type=Path))
def man_(folder: Path) -> None:
    """Write the man pages of all commands and of the configuration into FOLDER."""
    click.echo(f"{folder}: {len(man.write(folder))} pages")


@build.command("completion")
@click.argument("folder", type=click.Path(path_type=Path))
def completion_(folder: Path) -> None:
    """Write hadar.bash, _hadar (zsh) and hadar.fish into FOLDER."""
    for path in completion.write(folder):
        click.echo(path)


@build.command("deb")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--no-bytecode", is_flag=True, help="Leave out compiled modules: for tests of the contents.")
def deb_(folder: Path, no_bytecode: bool) -> None:
    """Write the Debian package of this checkout, with the libraries of the Python that runs this, into FOLDER."""
    click.echo(deb.build(folder, bytecode=not no_bytecode))


if __name__ == "__main__":
    try:
        build()
    except PackageError as error:
        sys.exit(f"package: {error}")
