#!/usr/bin/env bash
# uPlot cannot be imported in a headless Chromium that runs under the POSIX locale.
#
# Packages:  uplot 1.6.32, @sparticuz/chromium 153.0.0 (HeadlessChrome/153.0.8010.0), playwright 1.65.2. Linux on
#            x86_64; needs Python 3, npm.
# Input:     a page whose module imports uPlot.esm.js; the browser's environment has LC_ALL=C, as in containers,
#            CI and services, and no language is set.
# Expected:  the chart library is imported as under any other locale.
# Seen:      navigator.language is "en-US@posix", which is no language tag; uPlot makes an Intl.NumberFormat of it
#            while it is imported, and the import ends with "RangeError: Invalid language tag". With LC_ALL=en_US.UTF-8,
#            navigator.language is "en-US" and the import succeeds.
# So:        a page that draws with uPlot checks navigator.language before it imports it; screenshots of such pages
#            in CI set a locale.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-fund --no-audit --ignore-scripts @sparticuz/chromium@153.0.0 uplot@1.6.32
TMPDIR=$folder node --input-type=module -e '
    import chromium, {inflate} from "@sparticuz/chromium";
    await inflate("node_modules/@sparticuz/chromium/bin/al2023.tar.br");
    await chromium.executablePath();'
python3 -m venv venv
venv/bin/pip install --quiet playwright==1.65.2
LD_LIBRARY_PATH=$folder/al2023/lib venv/bin/python - "$folder/chromium" "$folder/node_modules/uplot/dist/uPlot.esm.js" <<'PYTHON'
import asyncio
import os
import sys
from pathlib import Path

from playwright.async_api import async_playwright

IMPORT = "import('/uPlot.esm.js').then(() => 'imported', (error) => String(error))"


async def look(locale: str) -> tuple[str, str]:
    """The page's language, and what came of the import, under a locale."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "LANG"))}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=sys.argv[1], env={**environment, "LC_ALL": locale})
        assert browser.version == "153.0.8010.0", browser.version
        page = await browser.new_page()
        library = Path(sys.argv[2]).read_text()
        await page.route("**/*", lambda route: route.fulfill(
            body=library if route.request.url.endswith(".js") else "<!doctype html>",
            content_type="text/javascript" if route.request.url.endswith(".js") else "text/html",
        ))
        await page.goto("http://page.example/")
        result = await page.evaluate("navigator.language"), await page.evaluate(IMPORT)
        await browser.close()
        return result


seen = {locale: asyncio.run(look(locale)) for locale in ("C", "en_US.UTF-8")}
print(seen)
language, outcome = seen["C"]
same = language == "en-US@posix" and outcome.startswith("RangeError") and seen["en_US.UTF-8"] == ("en-US", "imported")
sys.exit(0 if same else "this is not what was seen before")
PYTHON
echo "as described"
