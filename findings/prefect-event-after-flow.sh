#!/usr/bin/env bash
# An event that a Prefect process emits outside all runs is related to a flow run that has ended.
#
# Packages:  prefect 3.8.8 (fastapi 0.150.0 and sqlalchemy 2.0.58, with which its server works). Needs Python
#            3.10 to 3.12.
# Input:     two flows run one after the other in one process, each with a custom event; then the process
#            emits one event more, outside of any run.
# Expected:  each flow's event has its flow run in `related`; the last event has none.
# Seen:      the last event has the run of the first flow. (One thread sends all events of a process; it was
#            started, with a copy of the context, by the first event. Of a later event's context it sets what
#            is there, and leaves the rest.)
# So:        a run in `related` does not prove that the event came of it: compare the times, or name the run in
#            the payload.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet prefect==3.8.8 fastapi==0.150.0 sqlalchemy==2.0.58
export PREFECT_HOME=$folder/home PREFECT_LOGGING_LEVEL=ERROR DO_NOT_TRACK=1 PREFECT_SERVER_ANALYTICS_ENABLED=false
venv/bin/python - <<'PYTHON'
import sys

from prefect import flow, task
from prefect.events import emit_event
from prefect.events.clients import AssertingEventsClient
from prefect.events.worker import EventsWorker
from prefect.runtime import flow_run
from prefect.testing.utilities import prefect_test_harness

NAMES = ("demo.first", "demo.second", "demo.outside")


def emit(name: str) -> None:
    emit_event(event=name, resource={"prefect.resource.id": "demo"})


@task
def work() -> None:
    pass


@flow
def run(name: str) -> str:
    work()
    emit(name)
    return f"prefect.flow-run.{flow_run.id}"


EventsWorker.set_client_override(AssertingEventsClient)  # Prefect's own client for tests: it keeps what it is given
with prefect_test_harness(server_startup_timeout=180):
    first, second = run("demo.first"), run("demo.second")
    emit("demo.outside")
    EventsWorker.instance().drain()

words = {first: "the first flow run", second: "the second flow run"}
events = {event.event: event for client in AssertingEventsClient.all for event in client.events}
seen = [[words[one.id] for one in events[name].related if one.id in words] for name in NAMES]
expected = [["the first flow run"], ["the second flow run"], []]
for name, right, got in zip(NAMES, expected, seen, strict=True):
    print(f"{name}: related, expected {right}, seen {got}")
same = seen == [["the first flow run"], ["the second flow run"], ["the first flow run"]]
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
