"""What a policy remembers from round to round, and whose it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from slurm_hadar.controller.journal.salvage import row_object
from slurm_hadar.controller.journal.store import Journal

__all__ = ["memory_of", "owner_of"]


def owner_of(policy: str, params: Mapping[str, Any]) -> str:
    """Whose memory it is: that of another policy, or of other parameters, is of no use."""
    return json.dumps([policy, dict(params)], sort_keys=True)


def memory_of(journal: Journal, owner: str) -> Mapping[str, Any]:
    """What the journal keeps for ``owner``; empty if nothing."""
    text = journal.load_memory(owner)
    return (row_object(text) or {}) if text else {}
