"""Which files of tests a run by markers (``pytest -m``) has to read. Each worker of each suite would else import all of
them, PyTorch and the rest: ten seconds of CPU each."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict

#: Markers that a file must name where one of its tests has them.
NAMED = frozenset({"slurm", "torch", "built"})


def may_choose(expression: str, text: str) -> bool:
    """Whether the marker ``expression`` can choose a test of a file with that ``text``, whatever its tests are."""
    markers = set(re.findall(r"\w+", expression)) - {"and", "or", "not"}
    named = {marker for marker in NAMED if f"mark.{marker}" in text}
    whole = re.search(r"^pytestmark = (.*)", text, re.MULTILINE)
    of_all = {marker for marker in named if whole and f"mark.{marker}" in whole[1]}
    open_ = sorted((markers - NAMED) | (named - of_all))
    code = compile(expression, "marker expression", "eval")
    for values in itertools.product((True, False), repeat=len(open_)):
        known = defaultdict(bool, dict.fromkeys(of_all, True) | dict(zip(open_, values, strict=True)))
        if eval(code, {"__builtins__": {}}, known):  # pytest's expressions are Python's, and this one is the caller's
            return True
    return False
