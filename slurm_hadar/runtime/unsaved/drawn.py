"""Random number generators of a script that are in no checkpoint."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from slurm_hadar.runtime.batches.generators import followed, generators_within

__all__ = ["generators_of", "state_of"]


def generators_of(there: Mapping[str, Any], saved: Iterable[Any], mine: Iterable[Any]) -> dict[str, Any]:
    """Those that are among these variables, or were given to a loader that shuffles, or are held by an object, but for
    those that are ``saved``, by themselves or by what is ``mine``: what draws from them in the loop would begin anew in
    the next run."""
    own = [one for one in mine if not isinstance(one, (dict, list))]
    known = {id(one) for one in saved}
    known |= {id(drawn.of) for drawn in generators_within({str(n): one for n, one in enumerate(own)})}
    known_loaders, found = {id(one) for one in own}, dict[str, Any]()
    data = sys.modules.get("torch.utils.data")
    for name, value in there.items():
        loads = data is not None and isinstance(value, data.DataLoader)
        if loads and id(value) in known_loaders:
            continue
        drawn = followed(name, getattr(value.sampler, "generator", None) if loads else value)
        if drawn is not None and id(drawn.of) not in known:
            known.add(id(drawn.of))
            found[f"random number generator {name}"] = drawn
    held = dict[str, list[Any]]()
    for drawn in generators_within(there):
        if id(drawn.of) not in known:
            known.add(id(drawn.of))
            held.setdefault(drawn.path.strip(".").split(".")[0], []).append(drawn)
    for name, several in held.items():
        first = several[0].path.strip(".")
        what = (
            f"random number generator {first} (with what else {name} holds: give also= something that saves all of it)"
        )
        found[what] = _Several(several)
    return found


class _Several(NamedTuple):
    """Generators that one object holds."""

    of: list[Any]

    def get_state(self) -> Any:
        return [state_of(one) for one in self.of]


def state_of(generator: Any) -> bytes:
    state = generator.get_state()
    if hasattr(type(state), "is_cuda"):  # of a tensor the place in memory would be pickled, too
        return bytes(state.numpy().tobytes())
    return pickle.dumps(state)
