"""GPU models that the package knows, so that a speed measured on one can be carried over to another.

Figures are the makers' public data sheets (NVIDIA product briefs and architecture whitepapers, AMD Instinct data
sheets): dense peak rate in the precision that frameworks use for fp32 training by default, and memory bandwidth. What
is sustained is a share of the peak (our definition): 0.70 of the fp32 rate where there are no TF32 tensor cores, 0.35
of the TF32 rate where there are. Only ratios between types matter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from slurm_hadar.model import GpuType

__all__ = ["KNOWN", "find", "memory_gb"]

_FP32_SHARE, _TF32_SHARE = 0.70, 0.35

# peak fp32 TFLOP/s and GB/s of one GPU (one half of the board for the K80)
_FP32 = {
    "m40": (6.8, 288),
    "k80": (4.37, 240),
    "p4": (5.5, 192),
    "p40": (11.8, 346),
    "p100": (10.6, 732),
    "gtx1080ti": (11.3, 484),
    "titanv": (14.9, 653),
    "v100": (15.7, 900),
    "t4": (8.1, 320),
    "rtx2080ti": (13.4, 616),
    "rtx6000": (16.3, 672),
    "rtx8000": (16.3, 672),
    "mi100": (23.1, 1229),
    "mi210": (22.6, 1638),
}

# peak dense TF32 TFLOP/s and GB/s
_TF32 = {
    "a10": (62.5, 600),
    "a30": (82.0, 933),
    "a40": (74.8, 696),
    "a100": (156.0, 1555),
    "a4000": (38.3, 448),
    "a5000": (55.5, 768),
    "a6000": (77.4, 768),
    "rtx3080": (29.8, 760),
    "rtx3090": (35.6, 936),
    "rtx4090": (82.6, 1008),
    "rtx6000ada": (182.1, 960),
    "l4": (60.0, 300),
    "l40": (90.5, 864),
    "l40s": (183.0, 864),
    "h100": (494.0, 3350),
    "h200": (494.0, 4800),
    "gh200": (494.0, 4000),
    "b200": (1100.0, 8000),
    "mi300x": (653.7, 5300),
}

#: Known GPU models by the name used here; ``tflops`` is the sustained rate.
KNOWN: Mapping[str, GpuType] = {
    **{name: GpuType(name, round(peak * _FP32_SHARE, 2), float(gb)) for name, (peak, gb) in _FP32.items()},
    **{name: GpuType(name, round(peak * _TF32_SHARE, 2), float(gb)) for name, (peak, gb) in _TF32.items()},
}

# GB of memory of one GPU by the same data sheets (one half of the board for the K80); of a model that is sold with
# several, the least: who asks for memory must not get too little
_MEMORY_GB = {
    "m40": 12, "k80": 12, "p4": 8, "p40": 24, "p100": 12, "gtx1080ti": 11, "titanv": 12, "v100": 16, "t4": 16,
    "rtx2080ti": 11, "rtx6000": 24, "rtx8000": 48, "mi100": 32, "mi210": 64, "a10": 24, "a30": 24, "a40": 48,
    "a100": 40, "a4000": 16, "a5000": 24, "a6000": 48, "rtx3080": 10, "rtx3090": 24, "rtx4090": 24,
    "rtx6000ada": 48, "l4": 24,
    "l40": 48, "l40s": 48, "h100": 80, "h200": 141, "gh200": 96, "b200": 180, "mi300x": 192,
}  # fmt: skip

_ALIASES = {
    "v100s": "v100",
    "a100x": "a100",
    "rtxa4000": "a4000",
    "rtxa5000": "a5000",
    "rtxa6000": "a6000",
    "1080ti": "gtx1080ti",
    "2080ti": "rtx2080ti",
    "3080": "rtx3080",
    "3090": "rtx3090",
    "4090": "rtx4090",
}
_MIG = re.compile(r"\d+g\.([1-9]\d{0,3})gb")
_GIGABYTES = re.compile(r"(?<![a-z0-9.])([1-9]\d{0,3})gb?(?![a-z0-9.])")
_LONGEST_NAME_TOKENS = 3


def find(gres_name: str) -> GpuType | None:
    """The known model behind a GRES type such as ``tesla_v100-sxm2-32gb``, ``nvidia_h100_80gb_hbm3`` or ``rtx_3090``.

    The result carries ``gres_name`` as its name. None for a model that is not known, and for a slice of a GPU (MIG),
    whose speed is not that of the whole.
    """
    model = None if _MIG.search(gres_name.lower()) else _model(gres_name)
    return None if model is None else GpuType(gres_name, KNOWN[model].tflops, KNOWN[model].bandwidth_gb_s)


def memory_gb(gres_name: str) -> int | None:
    """Gigabytes of memory that one GPU of this GRES type has at least; None where nobody knows.

    Names that NVML gives (``slurmd -G``) end in it where a model is sold with several: ``tesla_v100-sxm2-32gb``, a
    slice ``a100_1g.5gb``. Other names mean the smallest of their model; so does ``nvidia_gh200_480gb``, which tells
    the memory of its CPU.
    """
    name, model = gres_name.lower(), _model(gres_name)
    stated = _MIG.search(name) or (_GIGABYTES.search(name) if model != "gh200" or "hbm" in name else None)
    if stated:
        return int(stated[1])
    return None if model is None else _MEMORY_GB[model]


def _model(gres_name: str) -> str | None:
    """The name here of the model that a GRES type names."""
    tokens = re.findall(r"[a-z0-9]+", gres_name.lower())
    for length in range(_LONGEST_NAME_TOKENS, 0, -1):
        for start in range(len(tokens) - length + 1):
            joined = "".join(tokens[start : start + length])
            model = _ALIASES.get(joined, joined)
            if model in KNOWN:
                return model
    return None
