#!/usr/bin/env bash
# Under CDP virtual time, a key that scrolls has not scrolled after half a second of the page's time.
#
# Packages:  @sparticuz/chromium 153.0.0 (HeadlessChrome/153.0.8010.0), playwright 1.65.2. Linux on x86_64;
#            needs Python 3, npm.
# Input:     a page of 5,000 px. PageDown, PageDown and End by Input.dispatchKeyEvent; after each, 500 ms by
#            Emulation.setVirtualTimePolicy ("advance"), then scrollY. Then the same with --disable-smooth-scrolling,
#            and in real time with 500 ms of sleep.
# Expected:  the page is further down after each key, in all three: the scroll takes 150 ms.
# Seen:      0, 0, 0 under virtual time: the animation waits for frames that the clock does not give. With the flag,
#            and in real time, the page scrolls at each key.
# So:        start Chromium with --disable-smooth-scrolling where a clock is held; scroll-behavior: auto is not enough.
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
venv/bin/pip install --quiet playwright==1.65.2 2>/dev/null
LD_LIBRARY_PATH=$folder/al2023/lib venv/bin/python - "$folder/chromium" <<'PYTHON'
import asyncio
import sys

from playwright.async_api import async_playwright

KEYS = (("PageDown", 34), ("PageDown", 34), ("End", 35))


async def scrolled(playwright, *flags, virtual):
    browser = await playwright.chromium.launch(executable_path=sys.argv[1], args=list(flags))
    page = await browser.new_page(viewport={"width": 800, "height": 600})
    await page.set_content("<div style='height: 5000px'></div>")
    cdp = await page.context.new_cdp_session(page)

    async def give(milliseconds):
        if not virtual:
            await asyncio.sleep(milliseconds / 1000)
            return
        over = asyncio.get_running_loop().create_future()
        cdp.once("Emulation.virtualTimeBudgetExpired", lambda event: over.set_result(event))
        await cdp.send("Emulation.setVirtualTimePolicy", {"policy": "advance", "budget": milliseconds})
        await over

    await give(100)
    places = []
    for key, code in KEYS:
        for kind in ("rawKeyDown", "keyUp"):
            event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            await cdp.send("Input.dispatchKeyEvent", event)
        await give(500)
        places.append((await cdp.send("Runtime.evaluate", {"expression": "scrollY"}))["result"]["value"])
    version = browser.version
    await browser.close()
    return version, places


async def main():
    async with async_playwright() as playwright:
        version, held = await scrolled(playwright, virtual=True)
        _, flag = await scrolled(playwright, "--disable-smooth-scrolling", virtual=True)
        _, real = await scrolled(playwright, virtual=False)
    print("Chromium", version)
    print("scrollY after PageDown, PageDown and End; expected: three growing numbers each time. Seen:")
    print(f"  virtual time: {held}; with --disable-smooth-scrolling: {flag}; real time: {real}")
    same = version == "153.0.8010.0" and held == [0, 0, 0]
    same = same and all(0 < one < two < end for one, two, end in (flag, real))
    print("as described" if same else "CHANGED")
    return not same


sys.exit(asyncio.run(main()))
PYTHON
