#!/usr/bin/env bash
# By CDP, the box of an SVG path with mitred corners grows by half its stroke times the miter limit.
#
# Packages:  @sparticuz/chromium 153.0.0 (HeadlessChrome/153.0.8010.0), playwright 1.65.2. Linux on x86_64;
#            needs Python 3, npm.
# Input:     a square from 10 to 60 with a stroke of 6, drawn by <path> or by <rect>. Its box by
#            getBoundingClientRect, DOM.getContentQuads, DOMSnapshot.captureSnapshot and Playwright's
#            bounding_box; and the pixels that are painted in its middle, by a screenshot.
# Expected:  each of the four is the box of the shape, 10 to 60, or of the paint, 7 to 63.
# Seen:      getBoundingClientRect leaves the stroke out. The others add half the stroke to a <rect> and to a
#            <path> with round joins, and half the stroke times stroke-miterlimit (4, if not given) to a <path>
#            with mitred ones, although its corners have right angles: -2 to 72. The pixels are the same.
# So:        compare boxes of one source only, and do not take a box by CDP for what a path covers.
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
import base64
import sys

from playwright.sync_api import CDPSession, Page, sync_playwright

PATH, RECT = 'path d="M10 10H60V60H10Z"', 'rect x="10" y="10" width="50" height="50"'
SHAPE, PAINTED = (10, 60), (7, 63)
SEEN = {
    (RECT, ""): PAINTED,
    (PATH, 'stroke-linejoin="round"'): PAINTED,
    (PATH, ""): (-2, 72),
    (PATH, 'stroke-miterlimit="10"'): (-20, 90),
}
"""Element and attributes: the box by CDP, from left to right."""
CLIENT_RECT = "shape => { const {left, right} = shape.getBoundingClientRect(); return [left, right]; }"
PIXELS = """async png => {
    const image = new Image();
    image.src = `data:image/png;base64,${png}`;
    await image.decode();
    const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const row = context.getImageData(0, 35, image.width, 1).data.filter((_, index) => index % 4 === 0);
    return [row.findIndex(red => red < 255), row.findLastIndex(red => red < 255) + 1];
}"""
"""The part of a picture's row that is not white, through the middle of the shape."""


def boxes(page: Page, cdp: CDPSession) -> dict[str, tuple[float, float]]:
    """Left and right end of the shape's box, by each source."""
    shape = page.locator("svg > *")
    root = cdp.send("DOM.getDocument")["root"]["nodeId"]
    node = cdp.send("DOM.querySelector", {"nodeId": root, "selector": "svg > *"})
    quad = cdp.send("DOM.getContentQuads", node)["quads"][0]
    snapshot = cdp.send("DOMSnapshot.captureSnapshot", {"computedStyles": []})
    document, tag = snapshot["documents"][0], snapshot["strings"].index(shape.evaluate("shape => shape.localName"))
    layout, index = document["layout"], document["nodes"]["nodeName"].index(tag)
    left, _, width, _ = layout["bounds"][layout["nodeIndex"].index(index)]
    box = shape.bounding_box()
    return {
        "getBoundingClientRect": tuple(shape.evaluate(CLIENT_RECT)),
        "getContentQuads": (quad[0], quad[2]),
        "captureSnapshot": (left, left + width),
        "bounding_box": (box["x"], box["x"] + box["width"]),
        "painted": tuple(page.evaluate(PIXELS, base64.b64encode(page.screenshot()).decode())),
    }


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[1])
    same = browser.version == "153.0.8010.0"
    page = browser.new_page()
    cdp = page.context.new_cdp_session(page)
    for (shape, attributes), by_cdp in SEEN.items():
        stroke = f'fill="none" stroke="black" stroke-width="6" {attributes}'
        page.set_content(f'<body style="margin: 0"><svg width="100" height="100"><{shape} {stroke}/></svg>')
        seen = boxes(page, cdp)
        print(f"<{shape} {attributes}".rstrip() + ">: expected 10 to 60 or 7 to 63, seen")
        print("   ", ", ".join(f"{source} {left:g} to {right:g}" for source, (left, right) in seen.items()))
        same &= seen == dict.fromkeys(seen, by_cdp) | {"getBoundingClientRect": SHAPE, "painted": PAINTED}
    browser.close()
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
