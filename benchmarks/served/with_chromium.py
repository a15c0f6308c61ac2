"""Run by the peers' Python: ``with_chromium.py MODULE ARGUMENTS...`` runs a module whose Playwright
starts the Chromium of ``$CHROMIUM``, which reaches no other host than this one."""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

from playwright.async_api import BrowserType as AsyncBrowserType
from playwright.sync_api import BrowserType

FLAGS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1, EXCLUDE localhost"]


def _patch(browser_type: Any) -> None:
    launch = browser_type.launch

    def patched(self: Any, **options: Any) -> Any:
        options["args"] = [*(options.get("args") or []), *FLAGS]
        return launch(self, **{"executable_path": os.environ["CHROMIUM"], **options})

    browser_type.launch = patched


if __name__ == "__main__":
    _patch(BrowserType)
    _patch(AsyncBrowserType)
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
