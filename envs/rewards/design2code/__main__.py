"""Command that renders a folder of HTML files to PNG.

``python -m envs.rewards.design2code FOLDER`` draws ``N.png`` for each ``N.html`` of a folder, as
tasks show it.
"""

from __future__ import annotations

import argparse
import asyncio
import io
from pathlib import Path

from PIL import Image as Pictures

from envs.browser import BrowserPool
from envs.episodes.page_renderer import PageRenderer


async def render_folder(folder: Path) -> int:
    """Write the pictures, and say how many."""
    files = sorted(folder.glob("*.html"))
    async with BrowserPool() as pool:
        drawer = PageRenderer(pool)
        for file in files:
            drawn = await drawer.render(file.read_text(encoding="utf-8"))
            with Pictures.open(io.BytesIO(drawn.png)) as picture:  # the browser's is made fast, not small
                picture.convert("RGB").save(file.with_suffix(".png"), optimize=True)
    return len(files)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    count = asyncio.run(render_folder(parser.parse_args().folder))
    print(f"{count} pictures drawn")
