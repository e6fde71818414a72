"""Write docs/config.md from the schema, so that the page cannot differ from the code.

python tools/config_reference.py > docs/config.md
"""

from __future__ import annotations

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


def rows(section: type, prefix: str) -> list[str]:
    lines = ["| setting | default | meaning |", "| --- | --- | --- |"]
    for name, field in section.model_fields.items():
        default = field.get_default(call_default_factory=True)
        shown = (
            "" if default is PydanticUndefined else f"`{default!s}`" if default not in ("", (), None, {}) else "empty"
        )
        lines.append(f"| `{prefix}.{name}` | {shown} | {field.description or ''} |")
    return lines


def page() -> str:
    parts = [HEAD]
    for name, field in Config.model_fields.items():
        if name == "origins":
            continue
        section = PartitionSection if name == "partitions" else field.annotation
        title, prefix = ("partitions.NAME", "partitions.NAME") if name == "partitions" else (name, name)
        parts.append(f"## {title}\n\n{section.__doc__}\n\n" + "\n".join(rows(section, prefix)) + "\n")
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
