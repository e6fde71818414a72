"""What the controller must remember: why it did what it did, and what Slurm forgets about jobs.

``records`` has the kinds of entries, ``schema`` the tables, ``reading`` and ``summaries`` the questions, ``store`` the
file itself, ``readonly`` the file for those who only look.
"""

from slurm_hadar.controller.journal.reading import SORTS, Reader
from slurm_hadar.controller.journal.readonly import ReadOnlyJournal, journal_copy
from slurm_hadar.controller.journal.records import (
    DashboardChanges,
    Decision,
    Event,
    EventKind,
    Gain,
    JobRecord,
    PastJob,
    Purpose,
    RoundRecord,
    Run,
    Stage,
    WriteOutcome,
    WriteRecord,
    drop_earlier,
    placement_from_json,
    placement_to_json,
)
from slurm_hadar.controller.journal.schema import SCHEMA_VERSION
from slurm_hadar.controller.journal.store import Journal
from slurm_hadar.controller.journal.summaries import ENDED_SEARCHED, MOST_GROUPS

__all__ = [
    "ENDED_SEARCHED",
    "MOST_GROUPS",
    "SORTS",
    "SCHEMA_VERSION",
    "Decision",
    "Event",
    "EventKind",
    "Gain",
    "JobRecord",
    "PastJob",
    "Journal",
    "Purpose",
    "ReadOnlyJournal",
    "Reader",
    "RoundRecord",
    "Run",
    "Stage",
    "DashboardChanges",
    "WriteOutcome",
    "WriteRecord",
    "drop_earlier",
    "journal_copy",
    "placement_from_json",
    "placement_to_json",
]
