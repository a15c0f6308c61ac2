#!/usr/bin/env bash
# WebArena-Verified counts a request as a navigation by its Accept header alone; a HAR's own marks do not count.
#
# Packages:  webarena-verified 1.2.3. Python 3.11 or newer.
# Input:     task 44 ("Open my todos page"), the answer that it expects, and a trace with one GET of the page that it
#            expects, answered with status 200 and text/html. Its headers are what CDP's Network.requestWillBeSent
#            gives (User-Agent, Upgrade-Insecure-Requests); the entry has _resourceType "document". Then the same
#            with the headers of Network.requestWillBeSentExtraInfo (Accept, Sec-Fetch-*).
# Expected:  score 1 for both: the same page was opened.
# Seen:      score 0 for the first, without an error or a notice; the evaluator saw no request at all. Score 1 for
#            the second.
# So:        a recorder over CDP must take the headers as they were sent, or each navigation task counts as failed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet webarena-verified==1.2.3
venv/bin/python - <<'PYTHON' 2>/dev/null
import sys
from importlib.metadata import version

from webarena_verified.api import WebArenaVerified
from webarena_verified.types.config import WebArenaVerifiedConfig

ANSWER = {"task_type": "NAVIGATE", "status": "SUCCESS", "retrieved_data": None, "error_details": None}
WILL_BE_SENT = {"User-Agent": "Mozilla/5.0", "Upgrade-Insecure-Requests": "1"}
SENT = WILL_BE_SENT | {
    "Accept": "text/html,application/xhtml+xml,*/*;q=0.8",
    "Sec-Fetch-Dest": "document",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-User": "?1",
}


def entry(headers):
    shared = {"httpVersion": "http/1.1", "cookies": [], "headersSize": -1, "bodySize": 0}
    return {
        "startedDateTime": "2026-01-01T00:00:00.000Z",
        "time": 2,
        "request": {
            **shared,
            "method": "GET",
            "url": "http://gitlab.test/dashboard/todos",
            "headers": [{"name": name, "value": value} for name, value in headers.items()],
            "queryString": [],
        },
        "response": {
            **shared,
            "status": 200,
            "statusText": "OK",
            "headers": [{"name": "Content-Type", "value": "text/html"}],
            "content": {"size": 10, "mimeType": "text/html"},
            "redirectURL": "",
        },
        "cache": {},
        "timings": {"send": 0, "wait": 1, "receive": 1},
        "_resourceType": "document",
    }


benchmark = WebArenaVerified(config=WebArenaVerifiedConfig(environments={"__GITLAB__": {"urls": ["http://gitlab.test"]}}))
scores = {}
for name, headers in (("requestWillBeSent", WILL_BE_SENT), ("requestWillBeSentExtraInfo", SENT)):
    result = benchmark.evaluate_task(task_id=44, agent_response=ANSWER, network_trace=[entry(headers)])
    scores[name] = (result.score, result.error_msg, result.evaluators_results[1].actual)
print("webarena-verified", version("webarena-verified"))
print("score, error and requests seen, expected: (1.0, None, …) for both; seen:")
for name, seen in scores.items():
    print(f"  {name}: {seen[0]}, {seen[1]}, {len(seen[2] or ())} requests")
same = scores["requestWillBeSent"][:2] == (0.0, None) and not scores["requestWillBeSent"][2]
same = same and scores["requestWillBeSentExtraInfo"][0] == 1.0
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
