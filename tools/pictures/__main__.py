"""Make the pictures of docs/dashboard.md: python -m tools.pictures [FOLDER], default docs/pictures; about a minute.

A small cluster lives through a day (``day``), ``hadar web``'s pages of it are opened in a headless Chromium,
and what is seen is kept, with few colours, since it stays in the repository for ever. The same code gives the same
pictures, but for the fonts of the machine and for expected starts, which take what CPU time there is.
Needs the extra ``[test]`` and, on Debian, `apt install chromium chromium-driver`.
"""

from __future__ import annotations

import base64
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from slurm_hadar.config import load
from slurm_hadar.controller.journal import ReadOnlyJournal
from slurm_hadar.web.app import create_app
from slurm_hadar.web.serve import serve
from tools.pictures.day import live_through, stopped_clock

OUT = Path(__file__).resolve().parents[2] / "docs" / "pictures"
COLOURS = 64
WIDE, PHONE = (1240, 1), (390, 1)  # width of the window, and pixels for one of it
#: {picture: [(page, window, height, dark)]}; several stand side by side
PICTURES = {
    "web-overview": [("/", WIDE, 1080, False)],
    "web-overview-dark": [("/?colour=user", WIDE, 760, True)],
    "web-queue": [("/queue?state=pending&sort=start", WIDE, 760, False)],
    "web-job": [("/job/{job}", WIDE, 860, False)],
    "web-node": [("/node/v100-1", WIDE, 760, False)],
    "web-node-drained": [("/node/k80-2", WIDE, 520, True)],
    "web-timeline": [("/timeline", WIDE, 860, False)],
    "web-ended": [("/ended", WIDE, 560, False)],
    "web-users": [("/users", WIDE, 420, False)],
    "web-partitions": [("/partitions", WIDE, 260, False)],
    "web-prices": [("/prices", WIDE, 640, False)],
    "web-phone": [
        ("/", PHONE, 860, False),
        ("/queue?state=pending", PHONE, 860, True),
        ("/timeline", PHONE, 860, False),
    ],
}


def _serve(journal: Path, now: float, to: Connection) -> None:
    with stopped_clock([now]):
        serve(create_app(journal, load(), now=time.time), "127.0.0.1", 0, to.send)


@contextmanager
def dashboard(journal: Path, now: float) -> Iterator[str]:
    """Its address, while it shows the journal as if it were ``now`` (epoch seconds)."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_serve, args=(journal, now, theirs))
    process.start()
    try:
        if not ours.poll(30):
            raise SystemExit("the dashboard does not start")
        yield str(ours.recv()).rstrip("/")
    finally:
        process.terminate()
        process.join()


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium with a profile of its own."""
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        raise SystemExit("no browser: on Debian `apt install chromium chromium-driver`")
    with tempfile.TemporaryDirectory(prefix="hadar-pictures-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
                     f"--user-data-dir={profile}"):  # fmt: skip
            options.add_argument(flag)
        window = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            yield window
        finally:
            window.quit()


def look_at(window: Any, address: str, width: int, scale: int, height: int, dark: bool) -> Image.Image:
    """What is to be seen there. Raises SystemExit if the browser complains about the page."""
    device = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 700}
    window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", device)
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    window.get(address)
    complaints = [entry["message"] for entry in window.get_log("browser")]
    if complaints:
        raise SystemExit(f"{address}: {complaints[0]}")
    png = window.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})["data"]
    return Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")


def save(parts: list[Image.Image], file: Path) -> None:
    """Side by side, with few colours."""
    gap = 24 if len(parts) > 1 else 0
    whole = Image.new("RGB", (sum(p.width + gap for p in parts) - gap, max(p.height for p in parts)), "#8a929c")
    left = 0
    for part in parts:
        whole.paste(part, (left, 0))
        left += part.width + gap
    _with_few_colours(whole).save(file, optimize=True)


def _with_few_colours(picture: Image.Image) -> Image.Image:
    """The colours that are seen most, as they are, then those that differ most from all chosen; every other colour
    becomes the nearest of them. (Pillow's own ways change the colour of the paper, or lose small things.)"""
    pixels = np.asarray(picture).reshape(-1, 3)
    colours, where, counts = np.unique(pixels, axis=0, return_inverse=True, return_counts=True)
    chosen = list(np.argsort(-counts)[: COLOURS // 2])
    points = colours.astype(float)
    distance = np.full(len(points), np.inf)
    for index in chosen:
        distance = np.minimum(distance, ((points - points[index]) ** 2).sum(axis=1))
    while len(chosen) < min(COLOURS, len(points)):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((points - points[chosen[-1]]) ** 2).sum(axis=1))
    nearest = ((points[:, None] - points[chosen][None]) ** 2).sum(axis=2).argmin(axis=1)
    found = Image.fromarray(nearest[where].reshape(picture.height, picture.width).astype(np.uint8))
    found.putpalette(colours[chosen].tobytes())
    return found


def main(folder: Path) -> None:
    os.environ["TZ"] = "UTC"
    time.tzset()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hadar-pictures-") as state:
        journal = Path(state) / "journal.db"
        now = live_through(journal)
        with ReadOnlyJournal(journal) as reader:
            moved = min(reader.queue_holding(), key=lambda row: abs(row["moves"] - 3))["job_id"]
        with dashboard(journal, now) as address, browser() as window:
            for name, views in PICTURES.items():
                parts = [
                    look_at(window, address + page.format(job=moved), width, scale, height, dark)
                    for page, (width, scale), height, dark in views
                ]
                file = folder / f"{name}.png"
                save(parts, file)
                print(f"{file}: {file.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
