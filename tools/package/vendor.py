"""The libraries that the package carries: those of the Python that builds it, which are those the tests ran with."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement

from tools.package import PackageError

#: a library's own tests and what only compilers want: a fifth of the size
LEFT_OUT = {"tests", "__pycache__", "include"}


def closure(requirements: Iterable[str], extras: frozenset[str] = frozenset()) -> list[Distribution]:
    """The installed distributions that ``requirements`` ask for, and what those ask for, by name.

    Raises PackageError where one is missing, or older than asked for.
    """
    found: dict[str, Distribution] = {}

    def add(text: str, extras: frozenset[str]) -> None:
        wanted = Requirement(text)
        if wanted.marker and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras | {""}):
            return
        try:
            distribution = importlib.metadata.distribution(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            raise PackageError(f"{wanted.name} is not installed; run make install") from None
        if distribution.version not in wanted.specifier:
            raise PackageError(f"{wanted} is asked for, {distribution.version} is installed; run make install")
        name = canonical(wanted.name)
        if name in found and not wanted.extras:
            return
        found[name] = distribution
        for inner in distribution.requires or []:
            add(inner, frozenset(wanted.extras))

    for text in requirements:
        add(text, extras)
    return [found[name] for name in sorted(found)]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def copy(distribution: Distribution, site: Path) -> None:
    """Copy a distribution's files into the folder ``site``; its programs and data outside of it stay behind."""
    if not distribution.files:
        raise PackageError(f"{distribution.name} has no record of its files; install it with pip")
    for file in distribution.files:
        papers = file.parts[0].endswith(".dist-info")  # licence texts are all kept
        if ".." in file.parts or (not papers and LEFT_OUT & set(file.parts[:-1])):
            continue
        target = site / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(str(file.locate()), target)


def licence(distribution: Distribution) -> str:
    """What a distribution says its licence is, in one line."""
    data = distribution.metadata
    stated = next((text for key in ("License-Expression", "License") for text in data.get_all(key, []) if text), "")
    if stated and len(stated) <= 60 and "\n" not in stated.strip():
        return stated.strip()
    classes = [c.rpartition(" :: ")[2] for c in data.get_all("Classifier", []) if c.startswith("License ::")]
    return ", ".join(classes) or "see its licence file"


def licence_files(distribution: Distribution) -> Iterator[Path]:
    """Its licence texts, relative to the folder it is installed in."""
    for file in distribution.files or []:
        name = file.name.upper()
        if ".dist-info" in file.parts[0] and name.startswith(("LICENSE", "LICENCE", "COPYING", "NOTICE")):
            yield Path(*file.parts)
