#!/usr/bin/env bash
# Under CDP virtual time, a cookie's date is judged by the real clock; even an age is, in the Cookie Store API.
#
# Packages:  @sparticuz/chromium 153.0.0 (HeadlessChrome/153.0.8010.0), playwright 1.65.2. Linux on x86_64;
#            needs Python 3, npm.
# Input:     a page whose clock was set two days back, or two days on, by Emulation.setVirtualTimePolicy. Its
#            script sets cookies that end in an hour: by document.cookie and by cookieStore.set, each with a
#            date of its own Date and with an age.
# Expected:  all four live for an hour.
# Seen:      only the Max-Age of document.cookie does. Two days back, the three others are dead at birth;
#            two days on, they live for two days, and a cookie that was set to a date in the
#            past is kept. So cookieStore.set makes a date of maxAge, by the page's clock, and the browser
#            compares it with its own.
# So:        a site that keeps a log-in by a date loses it, or never ends it, in a page with another clock.
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
import time

from playwright.sync_api import sync_playwright

DAY, HOUR = 86400, 3600
SET_COOKIES = """() => {
    const end = new Date(Date.now() + 3600e3), past = new Date(Date.now() - 3600e3);
    document.cookie = `expires=1; expires=${end.toUTCString()}`;
    document.cookie = "max_age=1; max-age=3600";
    document.cookie = `ended=1; expires=${past.toUTCString()}`;
    cookieStore.set({name: "store_expires", value: "1", expires: Number(end)});
    cookieStore.set({name: "store_max_age", value: "1", maxAge: 3600});
}"""
EXPECTED = {"expires": 1, "max_age": 1, "store_expires": 1, "store_max_age": 1}
SEEN = {
    0: EXPECTED,
    -2: {"max_age": 1},
    2: {"expires": 49, "max_age": 1, "ended": 47, "store_expires": 49, "store_max_age": 49},
}
"""Of a page clock so many days off: the cookies that live, and for how many hours."""

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[1])
    same = browser.version == "153.0.8010.0"
    print("hours to live, expected:", EXPECTED)
    for days, seen in SEEN.items():
        context = browser.new_context()
        page = context.new_page()
        page.route("**/*", lambda route: route.fulfill(body="<p>page", content_type="text/html"))
        page.goto("https://example.test/")
        cdp, over = context.new_cdp_session(page), []
        cdp.on("Emulation.virtualTimeBudgetExpired", lambda event, over=over: over.append(event))
        policy = {"policy": "pause", "initialVirtualTime": time.time() + days * DAY}
        cdp.send("Emulation.setVirtualTimePolicy", policy)
        page.evaluate(SET_COOKIES)
        cdp.send("Emulation.setVirtualTimePolicy", {"policy": "advance", "budget": 1000})  # for the promises
        while not over:
            page.wait_for_timeout(50)
        hours = {cookie["name"]: round((cookie["expires"] - time.time()) / HOUR, 1) for cookie in context.cookies()}
        print(f"page clock {days:+} days: seen {hours}")
        same &= hours.keys() == seen.keys() and all(abs(hours[name] - seen[name]) < 1 for name in hours)
    browser.close()
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
