"""The pinned Chromium and its fonts, and the environment variables that make Chromiums alike.

``pinned.json`` names the npm packages, with their versions and hashes;
``scripts/install_chromium.py`` installs them (docs/decisions.md).
"""

from __future__ import annotations

import json
import logging
import sys
from functools import cache
from pathlib import Path

from envs.settle import FONTS_CONF

logger = logging.getLogger(__name__)

PINNED_FOLDER = Path(sys.prefix) / "chromium"
"""Folder of the pinned Chromium that setup makes: ``chromium``, its libraries, ``fonts``."""

PINNED_PRODUCT: str = json.loads(Path(__file__).with_name("pinned.json").read_bytes())["product"]
"""Product name of the pinned Chromium (``Browser.getVersion``)."""

FONTS = (
    (PINNED_FOLDER, "Arimo_400Regular.ttf", "pinned-fonts.conf"),
    (Path("/usr/share"), "LiberationSans-Regular.*", FONTS_CONF.name),
)
"""Sets of fonts. Each has a folder, a font file expected below its ``fonts``, and the file of
fontconfig to use. The first set that exists is used."""

LOCALE = "en_US.UTF-8"
"""Decides pages' ``navigator.language`` and the order of a date field's parts. The system need not
have it."""


@cache
def environment() -> dict[str, str]:
    """Environment variables of a Chromium.

    The same language on every machine, and the same fonts by name where there are the pinned ones
    or Liberation's.
    """
    for folder, font, configuration in FONTS:
        if any(folder.glob(f"fonts/**/{font}")):
            return {
                "LC_ALL": LOCALE,
                "FONTCONFIG_PATH": str(FONTS_CONF.parent),
                "FONTCONFIG_FILE": configuration,
                "XDG_DATA_HOME": str(folder),
            }
    logger.warning(
        "no pinned fonts, and no Liberation fonts under /usr/share/fonts: pages are drawn with this machine's own, and screenshots "
        "differ from other machines'; run `make setup`"
    )
    return {"LC_ALL": LOCALE}
