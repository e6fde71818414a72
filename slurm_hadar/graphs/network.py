"""What a site says of its links: bandwidths per GPU type and node, switches and their uplinks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import ClassVar

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.topology import INSIDE_BYTES_S, OUTSIDE_BYTES_S, Topology

__all__ = ["Links", "Network"]


@dataclass(frozen=True, slots=True)
class Links:
    """Bytes/s between the GPUs of a node and out of it; None = as for all others."""

    inside: float | None = None
    outside: float | None = None


@dataclass(frozen=True)
class Network:
    """The links of a cluster.

    ``inside`` and ``outside`` (bytes/s) hold where neither ``nodes`` (by name) nor ``types`` (by GPU type) says
    otherwise; a node's own figures go before those of its type. ``switches``: all nodes below each, as
    :func:`slurm_hadar.graphs.topology.parse_switches` reads them. The uplink of a switch is the sum of the NICs below
    it over ``oversubscription``, or what ``uplinks`` says in bytes/s.
    """

    inside: float = INSIDE_BYTES_S
    outside: float = OUTSIDE_BYTES_S
    types: Mapping[str, Links] = field(default_factory=dict)
    nodes: Mapping[str, Links] = field(default_factory=dict)
    oversubscription: float = 1.0
    uplinks: Mapping[str, float] = field(default_factory=dict)
    switches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    #: The name under which a controller leaves its network for the jobs, beside the file of its channel.
    FILE: ClassVar[str] = "hadar-network.json"

    def to_json(self) -> str:
        """The text of the file; switches are not in it, since Slurm knows them."""
        content = {key: value for key, value in asdict(self).items() if key != "switches"}
        return json.dumps({"version": 1, **content}) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Network:
        """Read what :meth:`to_json` wrote. Raises GraphError."""
        try:
            content = json.loads(text)
            if content.pop("version") != 1:
                raise ValueError("is of another version")
            for key in ("types", "nodes"):
                content[key] = {name: Links(**links) for name, links in content[key].items()}
            return cls(**content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise GraphError(f"{cls.FILE} cannot be used ({error}); start the controller again") from None

    def with_switches(self, switches: Mapping[str, tuple[str, ...]]) -> Network:
        """The same network with these switches."""
        return replace(self, switches=switches)

    def links(self, gpu_type: str, node: str = "") -> tuple[float, float]:
        """Bytes/s inside and out of a node of this type; of any such node, if none is named."""
        here = (self.nodes.get(node, Links()), self.types.get(gpu_type, Links()))
        inside = next((given.inside for given in here if given.inside is not None), self.inside)
        outside = next((given.outside for given in here if given.outside is not None), self.outside)
        return inside, outside

    def topology(self, gpus: Mapping[str, int], types: Mapping[str, str], around: Mapping[str, str]) -> Topology:
        """Some nodes with these numbers of GPUs and GPU types, below the switches of the whole cluster.

        ``around``: the GPU types of all nodes of the cluster, since an uplink is as fast as all NICs below its switch
        allow. An uplink stated for a switch that is not there counts for nothing. Raises GraphError where a figure is
        impossible.
        """
        own = {node: self.links(types[node], node) for node in gpus}
        made = Topology.of(gpus, inside={n: b[0] for n, b in own.items()}, outside={n: b[1] for n, b in own.items()})
        if not self.switches:
            return made
        uplinks = {s: self._uplink(s, below, around) for s, below in self.switches.items()}
        return made.with_switches(self.switches, uplinks={s: b for s, b in uplinks.items() if b > 0})

    def _uplink(self, switch: str, below: Iterable[str], around: Mapping[str, str]) -> float:
        stated = self.uplinks.get(switch)
        if stated is not None:
            return stated
        return sum(self.links(around[n], n)[1] for n in below if n in around) / self.oversubscription
