"""What a job tells the scheduler about itself: ``--comment=hadar:key=value,key=value``.

This is the one place where the grammar lives::

    comment = "hadar:" [ pair *( "," pair ) ]
    pair    = key "=" value            each key at most once; no spaces, commas or quotes in a value

``hadar:`` alone opts the job in and says nothing more. Unknown keys are refused, with the list of the valid ones:
see :data:`KEYS`. Every number is bounded, so that whoever reckons with one never meets an infinity.
"""

from slurm_hadar.comment.keys import KEYS, MOST_SIZES, JobComment
from slurm_hadar.comment.text import (
    MOST_BYTES,
    PREFIX,
    compose,
    is_ours,
    looks_like_ours,
    parse,
    read,
    render,
    with_asked,
    with_key,
    with_needs,
)

__all__ = [
    "KEYS",
    "MOST_BYTES",
    "MOST_SIZES",
    "PREFIX",
    "JobComment",
    "compose",
    "is_ours",
    "looks_like_ours",
    "parse",
    "read",
    "render",
    "with_asked",
    "with_needs",
    "with_key",
]
