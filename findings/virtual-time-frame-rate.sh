#!/usr/bin/env bash
# Under a paused CDP clock, --disable-frame-rate-limit delays animation frames that come at once without it.
#
# Packages:  @sparticuz/chromium 153.0.0 (HeadlessChrome/153.0.8010.0), playwright 1.65.2. Linux on x86_64;
#            needs Python 3, npm.
# Input:     Emulation.setVirtualTimePolicy pauses a page's clock ten minutes ahead of the real one. The page
#            asks five times for an animation frame, after one that changed the page or changed nothing, and
#            waits a real second for it. If none comes, the clock is advanced by 16 ms, then by 1 ms.
# Expected:  with the switch, frames come no later than without it.
# Seen:      without it, all frames come while the clock stands. With it, only those do that follow a frame
#            that changed the page; after one that changed nothing, the next comes when the clock has gone on
#            by 17 ms (a sixtieth of a second), and not at 16.
# So:        leave the switch out under virtual time, or advance the clock by 17 ms for each frame.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit --ignore-scripts @sparticuz/chromium@153.0.0
TMPDIR=$folder node --input-type=module -e '
    import chromium, {inflate} from "@sparticuz/chromium";
    await inflate("node_modules/@sparticuz/chromium/bin/al2023.tar.br");
    await chromium.executablePath();'
python3 -m venv venv
venv/bin/pip install --quiet playwright==1.65.2
LD_LIBRARY_PATH=$folder/al2023/lib venv/bin/python - "$folder/chromium" <<'PYTHON'
import sys
from collections import Counter

from playwright.sync_api import Browser, sync_playwright

FRAMES, LEAD_MS = 5, 600_000
CHANGE = {"changed nothing": "", "changed the page": "document.body.append('text')"}
SEEN = {
    ("", "changed nothing"): "at once",
    ("", "changed the page"): "at once",
    ("--disable-frame-rate-limit", "changed nothing"): "after 17 ms",
    ("--disable-frame-rate-limit", "changed the page"): "at once",
}
"""Switch, what the frame before did: when the page's clock lets the next frame come."""


def frames(browser: Browser, change: str) -> Counter[str]:
    """When frames come, each asked for after one that made the change."""
    page = browser.new_page()
    cdp, over = page.context.new_cdp_session(page), []
    cdp.on("Emulation.virtualTimeBudgetExpired", lambda event: over.append(event))

    def advance(milliseconds: int) -> None:
        over.clear()
        cdp.send("Emulation.setVirtualTimePolicy", {"policy": "advance", "budget": milliseconds})
        while not over:
            page.wait_for_timeout(10)

    def came() -> bool:
        """Wait for the frame for a real second at most."""
        for _ in range(100):
            if page.evaluate("came"):
                return True
            page.wait_for_timeout(10)
        return False

    def next_frame() -> str:
        page.evaluate(f"() => {{ came = false; requestAnimationFrame(() => {{ came = true; {change} }}); }}")
        if came():
            return "at once"
        for given, milliseconds in {16: 16, 17: 1}.items():
            advance(milliseconds)
            if came():
                return f"after {given} ms"
        return "not"

    cdp.send("Emulation.setVirtualTimePolicy", {"policy": "pause"})
    advance(LEAD_MS)
    for _ in range(3):
        next_frame()  # not counted: the new page is drawn, and the first change made
    when = Counter(next_frame() for _ in range(FRAMES))
    page.close()
    return when


with sync_playwright() as playwright:
    same = True
    for (switch, before), seen in SEEN.items():
        browser = playwright.chromium.launch(executable_path=sys.argv[1], args=[switch] if switch else [])
        same &= browser.version == "153.0.8010.0"
        when = frames(browser, CHANGE[before])
        got = ", ".join(f"{count} {words}" for words, count in when.items())
        print(f"{switch or 'no switch'}, after a frame that {before}: expected {FRAMES} at once, seen {got}")
        same &= when == {seen: FRAMES}
        browser.close()
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
