"""Draw every page of the dashboard into docs/pictures/dashboard, from the fixtures: `make screenshots`.

Each picture is a PNG with a palette of at most 256 colours, a fifth of the size of what Chromium writes.
"""

import base64
import os
import shutil
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from playwright.sync_api import Page, sync_playwright

from tests.web.pages import PAGES
from tests.web.player import WEB, Player, playing

FOLDER = WEB.parent / "docs" / "pictures" / "dashboard"
LOOKS: dict[str, tuple[int, int, Any]] = {
    "light": (1280, 800, "light"),
    "dark": (1280, 800, "dark"),
    "phone": (390, 780, "light"),
}
STATE = "busy"
TROUBLE = "over-limit"
COLOURS = 256

PIXELS = """async (png) => {
  const picture = await createImageBitmap(await (await fetch(`data:image/png;base64,${png}`)).blob());
  const canvas = new OffscreenCanvas(picture.width, picture.height);
  const context = canvas.getContext('2d');
  context.drawImage(picture, 0, 0);
  const { data } = context.getImageData(0, 0, picture.width, picture.height);
  const bytes = await new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => done(reader.result);
    reader.readAsDataURL(new Blob([data]));
  });
  return [picture.width, picture.height, bytes.slice(bytes.indexOf(',') + 1)];
}"""


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def indexed_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode RGB pixels, of the shape (height, width, 3), with the most frequent colours; others become the nearest."""
    height, width, _ = pixels.shape
    colours, where, counts = np.unique(pixels.reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    palette = colours[np.argsort(-counts)[:COLOURS]]
    nearest = np.empty(len(colours), np.uint8)
    for start in range(0, len(colours), 1_000):
        part = colours[start : start + 1_000].astype(np.int32)
        distances = ((part[:, None] - palette[None].astype(np.int32)) ** 2).sum(axis=2)
        nearest[start : start + 1_000] = distances.argmin(axis=1)
    rows = np.zeros((height, width + 1), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = nearest[where.reshape(-1)].reshape(height, width)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            chunk(b"PLTE", palette.tobytes()),
            chunk(b"IDAT", zlib.compress(rows.tobytes(), 9)),
            chunk(b"IEND", b""),
        )
    )


def draw(page: Page, decoder: Page, file: Path) -> None:
    png = base64.b64encode(page.screenshot(animations="disabled")).decode()
    width, height, data = decoder.evaluate(PIXELS, png)
    pixels = np.frombuffer(base64.b64decode(data), np.uint8).reshape(height, width, 4)[:, :, :3]
    file.write_bytes(indexed_png(pixels))


def draw_all(page: Page, decoder: Page, player: Player, look: str, state: str, places: tuple[str, ...]) -> None:
    width, height, scheme = LOOKS[look]
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    for at in places:
        page.goto(f"{player.url}#/{at}")
        page.get_by_role("main").locator("section").first.wait_for()
        page.wait_for_load_state("load")
        page.wait_for_timeout(1_000)  # charts are drawn after what they show was asked for
        name = at.replace("/", "-") or "overview"
        draw(page, decoder, FOLDER / f"{'' if state == STATE else f'{state}-'}{name}-{look}.png")


def main() -> None:
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("chromium is not installed (Debian: apt install chromium, or name one with CHROMIUM)")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for old in FOLDER.glob("*.png"):
        old.unlink()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium)
        decoder = browser.new_page()
        page = browser.new_page(timezone_id="UTC")
        for state, places in ((STATE, PAGES), (TROUBLE, ("",))):
            with playing(state) as player:
                player.play.session = {**player.play.session, "role": "admin"}
                for look in LOOKS:
                    draw_all(page, decoder, player, look, state, places)
        browser.close()
    size = sum(file.stat().st_size for file in FOLDER.glob("*.png"))
    print(f"{len(list(FOLDER.glob('*.png')))} pictures, {size / 1e6:.2f} MB in {FOLDER}")


if __name__ == "__main__":
    main()
