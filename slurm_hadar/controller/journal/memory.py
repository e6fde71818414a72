"""What a policy remembers from round to round, and whose it is; beside it, what the controller was told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slurm_hadar.controller.journal.reading import Reader
from slurm_hadar.controller.journal.salvage import row_object

__all__ = ["GIVEN", "memory_of", "owner_of"]

#: The owner of what the controller alone was told, as on its command line; :func:`owner_of` gives no such name.
GIVEN = "given"


def owner_of(policy: str, params: Mapping[str, Any]) -> str:
    """Whose memory it is: that of another policy, or of other parameters, is of no use."""
    return json.dumps([policy, dict(params)], sort_keys=True)


def memory_of(journal: Reader, owner: str) -> Mapping[str, Any]:
    """What the journal keeps for ``owner``; empty if nothing."""
    text = journal.load_memory(owner)
    return (row_object(text) or {}) if text else {}
