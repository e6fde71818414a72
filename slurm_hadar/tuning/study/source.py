"""A study's Python file, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from slurm_hadar.errors import ConfigError

__all__ = ["module_of", "names_of", "tree_of"]


def tree_of(file: Path) -> ast.Module:
    """The file, in the encoding that it says. Raises ConfigError where it cannot be read as Python."""
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from None


def names_of(file: Path) -> dict[str, bool]:
    """What the file may define at its top level, and whether that is a coroutine, which one cannot simply call. Raises
    ConfigError where it cannot be read as Python."""
    found: dict[str, bool] = {}
    for node in _top_level(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found[node.name] = isinstance(node, ast.AsyncFunctionDef)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id: False for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {(alias.asname or alias.name).partition(".")[0]: False for alias in node.names}
    return found


def module_of(file: Path) -> tuple[str, Path]:
    """By which name the file is imported, and from which folder: as a module of its package where it imports
    relatively to that, else as one of its own. Raises ConfigError where such an import leads nowhere."""
    imports = [n for n in ast.walk(tree_of(file)) if isinstance(n, ast.ImportFrom) and n.level]
    if not imports:
        return file.stem, file.parent
    parts, folder = [file.stem], file.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    for node in imports:
        if node.level >= len(parts):
            where = f"{file.parent} has no __init__.py" if len(parts) == 1 else f"{parts[0]} is the outermost package"
            raise ConfigError(
                f"{file}, line {node.lineno}: 'from {'.' * node.level}{node.module or ''} import' leads out of its "
                f"package ({where}): import absolutely, or make its folder a package"
            )
    return ".".join(parts), folder


def _top_level(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when the file does, also within ``if``, ``try`` and ``with``."""
    for child in ast.iter_child_nodes(node):
        yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _top_level(child)
