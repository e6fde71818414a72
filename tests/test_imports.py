"""What keeps the rooms apart: contracts on imports, no circles, and heavy libraries in functions only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import slurm_hadar

ROOT = Path(slurm_hadar.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))


def test_contracts_are_kept() -> None:
    """Who may import whom is in .importlinter."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()"],
        cwd=ROOT.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_torch_only_inside_functions(path: Path) -> None:
    """Importing any module of ours never imports torch, pyslurm, pandas or scikit-learn."""
    tops = [n for n in ast.parse(path.read_text()).body if isinstance(n, ast.Import | ast.ImportFrom)]
    names = {a.name.split(".")[0] for n in tops if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module.split(".")[0] for n in tops if isinstance(n, ast.ImportFrom) and n.module}

    assert not names & {"torch", "pyslurm", "pandas", "sklearn"}


def _is_module(package: str, name: str) -> bool:
    base = ROOT.parent.joinpath(*package.split("."))
    return (base / f"{name}.py").exists() or (base / name / "__init__.py").exists()


def test_no_import_cycles() -> None:
    """The graph of modules has no circle."""
    graph: dict[str, set[str]] = {}
    for path in FILES:
        name = ".".join(("slurm_hadar", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")
        tops = ast.parse(path.read_text()).body
        edges = [(n.module, a.name) for n in tops if isinstance(n, ast.ImportFrom) and n.module for a in n.names]
        graph[name] = {f"{module}.{what}" if _is_module(module, what) else module for module, what in edges}
    done: set[str] = set()

    def visit(name: str, above: tuple[str, ...]) -> None:
        assert name not in above, f"circle: {' -> '.join((*above, name))}"
        if name in done or name not in graph:
            return
        for other in graph[name]:
            visit(other, (*above, name))
        done.add(name)

    for name in graph:
        visit(name, ())
