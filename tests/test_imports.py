"""Who may import whom: the rules that keep the rooms apart."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import slurm_hadar

ROOT = Path(slurm_hadar.__file__).parent
NEVER = {
    "model": {"*"},
    "errors": {"*"},
    "names": {"*"},
    "units": {"*"},
    "policies": {"slurm", "cluster", "controller", "runtime", "cli", "config", "comment", "messages", "simulator"},
    "throughput": {"slurm", "cluster", "controller", "runtime", "cli", "policies", "config", "simulator"},
    "predict": {
        "slurm",
        "cluster",
        "controller",
        "runtime",
        "cli",
        "policies",
        "throughput",
        "config",
        "simulator",
        "comment",
        "messages",
    },
    "slurm": {"policies", "controller", "runtime", "cli", "cluster", "throughput", "config", "simulator"},
    "runtime": {"controller", "policies", "slurm", "cli", "cluster", "config", "throughput", "simulator"},
    "submission": {"controller", "policies", "cli", "cluster", "config", "throughput", "simulator"},
    "cluster": {"controller", "policies", "runtime", "cli", "slurm", "simulator"},
    "controller": {"cli", "cluster", "runtime", "simulator", "service", "pages", "web", "tui"},
    "service": {"cli", "cluster", "runtime", "simulator", "web", "tui"},
    "simulator": {"cli", "runtime", "messages", "pages"},
    "doctor": {"cli", "runtime", "simulator", "pages"},
    "pages": {"slurm", "cluster", "policies", "runtime", "cli", "predict", "web", "tui"},
    "web": {"slurm", "cluster", "policies", "runtime", "cli", "predict", "tui", "simulator"},
    "tui": {"slurm", "cluster", "policies", "runtime", "cli", "predict", "simulator", "web"},
    "config": {"slurm", "cluster", "controller", "runtime", "cli", "policies", "throughput", "simulator"},
    "comment": {"slurm", "cluster", "controller", "runtime", "cli", "policies", "throughput", "config", "simulator"},
    "messages": {"slurm", "cluster", "controller", "runtime", "cli", "policies", "throughput", "config", "simulator"},
}

# what a room may import of ours at all, and by whom a room may be imported
ONLY = {"graphs": {"errors"}}
USERS = {
    "graphs": {"policies", "simulator", "controller", "runtime", "cli"},
    "doctor": {"cli"},
    "service": {"cli"},
    "web": {"cli"},
    "tui": {"cli"},
}


def _room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Rooms of ours that a file imports, at its top or inside functions."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module] if node.module != "slurm_hadar" else [f"slurm_hadar.{a.name}" for a in node.names]
        rooms |= {n.split(".")[1] for n in names if n.startswith("slurm_hadar.")}
    return rooms


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_room_rules(path: Path) -> None:
    """A room imports only what it may; nobody imports the command line."""
    room = _room(path)
    imported = _imports(path) - {room}

    if NEVER.get(room) == {"*"}:
        assert not imported
    assert not imported & NEVER.get(room, set())
    assert imported <= ONLY.get(room, imported)
    for used in imported & USERS.keys():
        assert room in USERS[used]
    if room != "cli":
        assert "cli" not in imported


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
