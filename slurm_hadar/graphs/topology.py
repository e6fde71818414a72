"""The cluster as its links: GPUs and bandwidths of every server, and the switches between them.

Slurm knows which nodes hang on which switch, but not how fast the links are (the unit of ``LinkSpeed`` is arbitrary and
Slurm does not use it). So bandwidths are the administrator's to state; the defaults are those of a common machine.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.errors import GraphError

__all__ = ["INSIDE_BYTES_S", "OUTSIDE_BYTES_S", "Group", "Topology", "parse_switches"]

#: Between the GPUs of a server: NVLink as on DGX-class machines, 100 GB/s. A server with PCIe only has about 12e9.
INSIDE_BYTES_S = 100e9
#: Out of a server: one port of 100 Gbit/s.
OUTSIDE_BYTES_S = 12.5e9

_MOST_NAMES = 100_000
_PAIR = re.compile(r"(\w+)=(\S+)")


@dataclass(frozen=True, slots=True)
class Group:
    """The servers below one switch (places in :attr:`Topology.names`, ascending) and its uplink in bytes/s."""

    servers: tuple[int, ...]
    uplink: float


@dataclass(frozen=True)
class Topology:
    """Servers by number: ``gpus[m]``, ``inside[m]`` (bytes/s between its GPUs), ``outside[m]`` (bytes/s of its NIC).

    ``groups``: switches below the root, small ones first; what leaves one shares its uplink. Two topologies are equal
    when they differ in ``names`` only. Raises GraphError where a figure is impossible.
    """

    gpus: tuple[int, ...]
    inside: tuple[float, ...]
    outside: tuple[float, ...]
    groups: tuple[Group, ...] = ()
    names: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.gpus:
            raise GraphError("a topology needs at least one server")
        if not self.names:
            object.__setattr__(self, "names", tuple(str(i) for i in range(len(self.gpus))))
        if not len(self.gpus) == len(self.inside) == len(self.outside) == len(self.names):
            raise GraphError("a topology needs GPUs, both bandwidths and a name for every server")
        for name, count, inside, outside in zip(self.names, self.gpus, self.inside, self.outside, strict=True):
            if count < 0:
                raise GraphError(f"server {name}: the number of GPUs must be at least 0, not {count}")
            if not (0 < inside < math.inf and 0 < outside < math.inf):
                raise GraphError(f"server {name}: bandwidths must be positive, in bytes/s")
        for group in self.groups:
            if not group.servers or not group.uplink > 0 or not 0 <= group.servers[0] <= group.servers[-1] < len(self):
                raise GraphError("a switch needs servers of this topology and an uplink above 0 bytes/s")
        # so that whoever looks for the smallest group that will do finds it first
        order = sorted(self.groups, key=lambda g: (len(g.servers), g.servers))
        object.__setattr__(self, "groups", tuple(order))
        object.__setattr__(self, "_hash", hash((self.gpus, self.inside, self.outside, self.groups)))

    def __len__(self) -> int:
        return len(self.gpus)

    # a look-up in a cache of topologies must not hash a thousand servers each time
    def __hash__(self) -> int:
        return int(self.__dict__["_hash"])

    @classmethod
    def of(
        cls,
        gpus: Mapping[str, int] | Sequence[int],
        *,
        inside: float | Mapping[str, float] = INSIDE_BYTES_S,
        outside: float | Mapping[str, float] = OUTSIDE_BYTES_S,
    ) -> Topology:
        """Servers by name (or merely numbered) with their GPUs; bandwidths alike for all, or by name.

        Servers that a mapping of bandwidths leaves out get the default.
        """
        named = gpus if isinstance(gpus, Mapping) else {str(i): count for i, count in enumerate(gpus)}
        return cls(
            tuple(named.values()),
            _per_server(named, inside, INSIDE_BYTES_S),
            _per_server(named, outside, OUTSIDE_BYTES_S),
            names=tuple(named),
        )

    def with_switches(
        self, switches: Mapping[str, Iterable[str]], *, oversubscription: float = 1.0, uplinks: Mapping[str, float] = {}
    ) -> Topology:
        """The same servers below ``switches`` (:func:`parse_switches`).

        An uplink not stated in ``uplinks`` (bytes/s) is the sum of its servers' NICs over ``oversubscription``. Names
        of nodes that are no servers here are passed over; switches with all servers below them, or none, limit
        nothing.
        """
        if not 1.0 <= oversubscription < math.inf:
            raise GraphError(f"oversubscription must be at least 1, not {oversubscription:g}")
        if unknown := set(uplinks) - set(switches):
            raise GraphError(f"uplink of an unknown switch {min(unknown)!r}; switches: {', '.join(sorted(switches))}")
        place = {name: i for i, name in enumerate(self.names)}
        found: dict[tuple[int, ...], float] = {}
        for switch, nodes in switches.items():
            servers = tuple(sorted({place[n] for n in nodes if n in place}))
            if 0 < len(servers) < len(self):
                uplink = uplinks.get(switch) or sum(self.outside[m] for m in servers) / oversubscription
                found[servers] = min(uplink, found.get(servers, math.inf))
        return replace(self, groups=tuple(Group(*item) for item in found.items()))


def _per_server(gpus: Iterable[str], given: float | Mapping[str, float], default: float) -> tuple[float, ...]:
    if isinstance(given, Mapping):
        return tuple(float(given.get(name, default)) for name in gpus)
    return tuple(float(given) for _ in gpus)


def parse_switches(text: str) -> dict[str, tuple[str, ...]]:
    """Switches and all nodes below each, from ``topology.conf`` or the output of ``scontrol show topology``.

    Both have one switch per line, ``SwitchName=s0 Nodes=tux[0-3]`` or ``SwitchName=s2 Switches=s[0-1]``; keys in any
    case, ``#`` begins a comment, a backslash at its end continues a line. Only the tree and 3d-torus forms of Slurm
    have switches; blocks (``BlockName=``) are refused. Raises GraphError naming the line.
    """
    own: dict[str, tuple[str, ...]] = {}
    below: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(re.sub(r"\\\n", " ", text).splitlines(), 1):
        fields = {key.lower(): value for key, value in _PAIR.findall(line.partition("#")[0])}
        if "blockname" in fields:
            raise GraphError(f"topology line {number}: blocks are not understood, only switches (topology/tree)")
        if "switchname" not in fields:
            if line.partition("#")[0].strip():
                raise GraphError(f"topology line {number}: must begin with SwitchName=, not {line.strip()[:60]!r}")
            continue
        name = fields["switchname"]
        if name in own:
            raise GraphError(f"topology line {number}: switch {name} stands twice")
        own[name] = _expand(fields.get("nodes", ""), number)
        below[name] = _expand(fields.get("switches", ""), number)
    return {name: tuple(dict.fromkeys(_nodes_below(name, own, below, ()))) for name in own}


def _nodes_below(
    name: str, own: Mapping[str, tuple[str, ...]], below: Mapping[str, tuple[str, ...]], above: tuple[str, ...]
) -> list[str]:
    if name in above:
        raise GraphError(f"topology: switch {name} is below itself")
    if name not in own:
        raise GraphError(f"topology: switch {above[-1]} names a switch {name} that is not described")
    nodes = list(own[name])
    for child in below[name]:
        nodes += _nodes_below(child, own, below, (*above, name))
    return nodes


def _expand(hosts: str, line: int) -> tuple[str, ...]:
    """``tux[0-3,07],big`` as single names; several brackets in a name multiply."""
    if hosts.lower() in ("", "(null)", "none"):
        return ()
    if re.search(r"[\[\]]", re.sub(r"\[[^\[\]]*\]", "", hosts)):
        raise GraphError(f"topology line {line}: the brackets of {hosts[:60]} do not match")
    names: list[str] = []
    for item in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+", hosts):
        pieces = [_numbers(p, line) if p.startswith("[") else [p] for p in re.findall(r"\[[^\]]*\]|[^\[\]]+", item)]
        if math.prod(map(len, pieces)) + len(names) > _MOST_NAMES:
            raise GraphError(f"topology line {line}: more than {_MOST_NAMES} names")
        names += ["".join(parts) for parts in itertools.product(*pieces)]
    return tuple(names)


def _numbers(bracket: str, line: int) -> list[str]:
    numbers: list[str] = []
    for part in bracket[1:-1].split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part, re.ASCII)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not match or not low <= high < low + _MOST_NAMES:
            raise GraphError(f"topology line {line}: {bracket} is not a list of numbers such as [0-3,7]")
        numbers += [str(n).zfill(len(match[1])) for n in range(low, high + 1)]
    return numbers
