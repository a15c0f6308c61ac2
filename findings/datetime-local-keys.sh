#!/usr/bin/env bash
# The keys that fill a datetime-local field depend on its max: Tab after the year is needed without, and wrong with one.
#
# Packages:  @sparticuz/chromium 153.0.0 (HeadlessChrome/153.0.8010.0), playwright 1.65.2. Linux on x86_64;
#            needs Python 3, npm.
# Input:     <input type=datetime-local> in an en-US page, with and without max="2030-12-31T23:59" and a first
#            value. Keys: 05172026, then Tab or none, then 0905PM (17 May 2026, 21:05, part by part).
# Expected:  one of both ways to type fits every field, as one does with <input type=date>; or else the field
#            is visibly incomplete.
# Seen:      the year takes six digits where max does not say less. So without max, the digits of the hour go
#            into the year (202609) unless Tab is pressed; with max, the focus has already left the year, and
#            Tab leaves the hour out. The field is then empty, or where it had a value, another valid time is
#            kept: no error, badInput false.
# So:        set such fields by value (fill), or read the value back after typing.
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

from playwright.sync_api import sync_playwright

MAX, VALUE = 'max="2030-12-31T23:59"', 'value="2026-01-01T00:00"'
EXPECTED = "2026-05-17T21:05"
SEEN = {
    ("", True): (EXPECTED, False),
    ("", False): ("", True),
    (VALUE, True): (EXPECTED, False),
    (VALUE, False): ("202609-05-17T05:00", False),
    (MAX, True): ("", True),
    (MAX, False): (EXPECTED, False),
    (f"{MAX} {VALUE}", True): ("2026-05-17T12:09", False),
    (f"{MAX} {VALUE}", False): (EXPECTED, False),
}
"""Attributes, whether Tab is pressed after the year: the field's value and ``validity.badInput``."""

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[1])
    same = browser.version == "153.0.8010.0"
    page = browser.new_page(locale="en-US")
    for (attributes, tab), seen in SEEN.items():
        page.set_content(f"<input type=datetime-local {attributes}>")
        field = page.locator("input")
        field.press_sequentially("05172026")
        if tab:
            page.keyboard.press("Tab")
        page.keyboard.type("0905PM")
        got = field.input_value(), field.evaluate("field => field.validity.badInput")
        keys = "Tab" if tab else "no Tab"
        print(f"{attributes or 'no attributes':48} {keys:6} expected {EXPECTED}, seen {got[0] or 'empty'}")
        same &= got == seen
    browser.close()
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
