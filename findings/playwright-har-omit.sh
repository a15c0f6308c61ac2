#!/usr/bin/env bash
# Playwright's HAR with content "omit" also drops the bodies of requests, not only those of answers.
#
# Packages:  @sparticuz/chromium 153.0.0 (HeadlessChrome/153.0.8010.0), playwright 1.65.2. Linux on x86_64;
#            needs Python 3, npm.
# Input:     a page that posts {"name":"Ann"} with fetch, recorded by record_har_path with record_har_content "omit",
#            which its documentation describes for resources, and with "embed".
# Expected:  both archives hold the posted text: what was sent is no resource's content.
# Seen:      with "omit" postData is there, with its MIME type and an empty text; bodySize still counts the bytes.
# So:        an evaluator that reads what an agent submitted from such an archive finds nothing, without an error.
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
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import sync_playwright

PAGE = b"""<script>
fetch("/save", {method: "POST", headers: {"Content-Type": "application/json"}, body: '{"name":"Ann"}'})
    .then(() => { document.title = "sent" })
</script>"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(PAGE)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
seen = {}
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=sys.argv[1])
    print("Chromium", browser.version)
    for content in ("embed", "omit"):
        context = browser.new_context(record_har_path=f"{content}.har", record_har_content=content)
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_function("document.title == 'sent'")
        context.close()
        entries = json.load(open(f"{content}.har"))["log"]["entries"]
        request = next(entry["request"] for entry in entries if entry["request"]["method"] == "POST")
        seen[content] = (request["postData"]["text"], request["bodySize"])
    browser.close()
print("text and bodySize of the posted data, expected for both: ('{\"name\":\"Ann\"}', 14)")
print("seen:", seen)
same = seen["embed"] == ('{"name":"Ann"}', 14) and seen["omit"] == ("", 14)
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
