"""Write docs/config.md from the schema, so that the page cannot differ from the code.

python tools/config_reference.py > docs/config.md
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from slurm_hadar.config import Config, PartitionSection

HEAD = """# Configuration

One TOML file. Read in this order, later ones win: `/etc/slurm-hadar/config.toml`, `/etc/slurm-hadar/config.d/*.toml`
by name, or instead of both the file named by `--config` or `$HADAR_CONFIG`; last, `--set section.key=value` on the
command line. `hadar config check` says whether it is valid, `hadar config show --origin` what is in force and why.
This page is made from the code by `python tools/config_reference.py`.

```toml
[controller]
mode = "observe"          # look only: the default after installing
round_s = 360

[partitions.gpu]
mode = "act"              # steer the jobs of this partition

[guard]
exempt_qos = ["urgent"]
```
"""


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Each section's name and schema; the many of a kind as ``partitions.NAME``."""
    for name, field in Config.model_fields.items():
        if name == "partitions":
            yield "partitions.NAME", PartitionSection
        elif name != "origins":
            assert isinstance(field.annotation, type), name
            yield name, field.annotation


def default_text(field: FieldInfo) -> str:
    """A setting's default; nothing where it is empty, or has to be given."""
    default = field.get_default(call_default_factory=True)
    return "" if default in (PydanticUndefined, "", (), None, {}) else str(default)


def rows(section: type[BaseModel], prefix: str) -> list[str]:
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in section.model_fields.items():
        default = default_text(field)
        shown = "" if field.is_required() else f"`{default}`" if default else "empty"
        lines.append(f"| `{prefix}.{name}` | {shown} | {field.description or ''} |")
    return lines


def page() -> str:
    parts = [HEAD]
    for prefix, section in sections():
        parts.append(f"## {prefix}\n\n{section.__doc__}\n\n" + "\n".join(rows(section, prefix)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
