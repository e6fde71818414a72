"""What a loop reads before it sets it, of the bytecode that the Python at hand compiles: it differs in each release."""

from __future__ import annotations

import dis
import textwrap
import types

import pytest

from slurm_hadar.runtime.unsaved.liveness import live, named

#: What is within the loop, and the variables that go on from turn to turn.
ONLY_SET = {
    "an output": "y = cell(x)\nh = y\ng = h",
    "a slice of all": "y = cell(x)\nh[:] = y\ng = h",
    "an ellipsis": "y = cell(x)\nh[...] = y\ng = h",
    "copied into on the line of another": "y = cell(x); h.copy_(y)\ng = h",
    "copied into by one of two": "h.copy_(x or y)\ng = h",
    "copied into by a choice": "h.copy_(x if y else z)\ng = h",
    "copied into as an argument": "f(x, h.copy_(x))\ng = h",
    "set by a comprehension over its name": "h = [h for h in x]\ng = h",
    "a name within a comprehension": "g = [h for h in x]\ng = [f(lambda: h) for h in x]\ng = {h: 1 for h in x if h}",
    "set in each turn of a loop within": "for y in x: h = cell(y)\ng = h",
    "an attribute": "y = cell(x)\nself.h = y\ng = self.h",
    "an attribute on the line of another": "y = cell(x); self.h = y; g = self.h",
    "among very many names": "\n".join(f"q.a{n}(w{n})" for n in range(300)) + "\nh.copy_(x)\ng = h",
}
READ = {
    "a state": "y, h = cell(x, h)",
    "a part that is written": "h[1:] = cell(x)\ng = h",
    "added to": "h[:] += cell(x)\ng = h",
    "copied into at times": "if x: h.copy_(x)\ng = h",
    "its name is in a comprehension, too": "y = sum([h for h in x])\nh = cell(x, h)",
    "in one without a result": "[f(h) for h in x]\nh = cell(x, h)",
    "in one with conditions": "y = [h if h > 1 else y for h in x if h] or [h for h in y]\nh = cell(x, h)",
    "in one of a dict": "y = {k: h.to(d) for k, h in x.items()}\nh = cell(x, h)",
    "in one within one": "y = [[h for h in k] for k in [h for h in x]]\nh = cell(x, h)",
    "in one where an exception is met": "try:\n  y = [h for h in x]\nexcept E: pass\nh = cell(x, h)",
    "a comprehension reads it": "y = [cell(a, h) for a in x]\nh = y[-1]",
    "a comprehension sets it": "y = [(h := cell(a, h)) for a in x]",
    "set in a loop within that goes on": "for y in x: h = cell(y, h)\ng = h",
    "an attribute that is added to": "self.h += cell(x)",
    "an attribute that goes on": "y = cell(x, self.h)\nself.h = y",
    "an attribute among very many names": "\n".join(f"q.a{n}(w{n})" for n in range(300)) + "\nself.h = cell(self.h)",
}


def _loop(body: str, function: bool) -> tuple[types.CodeType, int]:
    """Compiled, and where it waits for what is next."""
    begin = "def f(self, run, h, cell):" if function else "if run:"
    text = f"{begin}\n  for x in run:\n{textwrap.indent(body, '    ')}\n"
    code = compile(text, "script", "exec")
    if function:
        code = next(part for part in code.co_consts if isinstance(part, types.CodeType))
    return code, next(step.offset for step in dis.get_instructions(code) if step.opname == "FOR_ITER")


@pytest.mark.parametrize("function", [True, False], ids=["function", "module"])
@pytest.mark.parametrize("goes_on", [True, False])
def test_what_goes_on_is_read_first(goes_on: bool, function: bool) -> None:
    for what, body in (READ if goes_on else ONLY_SET).items():
        alive = live(*_loop(body, function)) & {"h", "self.h"}
        assert bool(alive) == goes_on, f"{what}: {alive}"


def test_the_names_of_comprehensions_are_not_set() -> None:
    _, sets = named(_loop("y = [h for h in x]\nz = {h: k for h, k in x if k}", True)[0])
    assert {"x", "y", "z"} <= sets and not {"h", "k"} & sets
