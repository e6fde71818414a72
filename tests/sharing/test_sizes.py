"""Sizes as people write them."""

from __future__ import annotations

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.sharing.sizes import MOST_BYTES, size_bytes, size_in_words


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0), ("16000000000", 16 * 10**9), ("16G", 16 * 10**9), ("16GB", 16 * 10**9), ("16gb", 16 * 10**9),
        ("16GiB", 16 * 2**30), ("16Gi", 16 * 2**30), (" 16 GiB ", 16 * 2**30), ("1.5G", 1_500_000_000),
        ("0.1K", 100), ("512B", 512), ("2M", 2_000_000), ("1T", 10**12), ("1TiB", 2**40), ("1.0001K", 1000),
        ("16e9", 16 * 10**9), ("1.6e+10", 16 * 10**9), ("1E9", 10**9),
    ],
)  # fmt: skip
def test_sizes_are_read(text: str, size: int) -> None:
    assert size_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "G", "-1", "e9", "1e", "1e-9", "16X", "16iB", "1.G", "16G16", "nan", "١", "0x10", "9" * 30]
)
def test_what_is_no_size_is_refused_with_the_forms_that_are(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is no size in bytes: 16000000000, 16G \(powers of 1000\) or 16GiB"):
        size_bytes(text)


def test_sizes_beyond_any_gpu_are_refused() -> None:
    assert size_bytes(str(MOST_BYTES)) == MOST_BYTES
    with pytest.raises(ConfigError, match="more than any GPU has"):
        size_bytes("2000T")


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (600_000_000, "600 MB"), (999_960_000, "1 GB"),
     (14_923_189_224, "14.92 GB"), (MOST_BYTES, "1000 TB")],
)  # fmt: skip
def test_sizes_for_people(size: int, words: str) -> None:
    assert size_in_words(size) == words
