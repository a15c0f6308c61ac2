#!/usr/bin/env bash
# Performance.getMetrics is answered before a DOM.getNodeForLocation that was sent before it, on one CDP session.
#
# Packages:  @sparticuz/chromium 153.0.0 (HeadlessChrome/153.0.8010.0), playwright 1.65.2. Linux on x86_64;
#            needs Python 3, npm.
# Input:     after each change of a width, DOM.getNodeForLocation (a hit test, which computes layout) and one
#            more command are sent at once, in this order.
# Expected:  one session answers in the order in which it was asked, so the counters contain the hit test's
#            layout.
# Seen:      with Performance.getMetrics second, 5 to 35 % of the pairs are answered in the other order (most
#            on a loaded machine); with DOM.getDocument or Runtime.evaluate second, none.
# So:        counters that shall contain the work of a command are asked for after its answer, not beside it.
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
import asyncio
import sys

from playwright.async_api import CDPSession, async_playwright

TRIES = 1000
FIRST = "DOM.getNodeForLocation"
SECOND = {"Performance.getMetrics": {}, "DOM.getDocument": {}, "Runtime.evaluate": {"expression": "1"}}


async def overtaken(cdp: CDPSession, second: str) -> int:
    """How often the second command is answered first."""
    count = 0
    for number in range(TRIES):
        change = f"document.querySelector('div').style.width = '{10 + number % 100}px'"
        await cdp.send("Runtime.evaluate", {"expression": change})
        answered = []

        async def ask(command: str, parameters: dict) -> None:
            await cdp.send(command, parameters)
            answered.append(command)

        await asyncio.gather(ask(FIRST, {"x": 10, "y": 10}), ask(second, SECOND[second]))
        count += answered[0] != FIRST
    return count


async def main() -> bool:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=sys.argv[1])
        same = browser.version == "153.0.8010.0"
        page = await browser.new_page()
        await page.set_content("<div>text</div>" * 50)
        cdp = await page.context.new_cdp_session(page)
        for command in ("Performance.enable", "DOM.enable", "DOM.getDocument"):
            await cdp.send(command)
        for second in SECOND:
            count = await overtaken(cdp, second)
            print(f"{second} after {FIRST}: expected 0 answered first, seen {count} of {TRIES}")
            same &= (count > 0) == (second == "Performance.getMetrics")
        await browser.close()
    return same


same = asyncio.run(main())
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
