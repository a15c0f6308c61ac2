"""Who started a run, as its folder keeps it."""

from __future__ import annotations

import getpass

from prefect import flow, tags
from prefect._internal.schemas.fields import CreatedBy
from prefect.context import FlowRunContext

from tasks_lib.processes.prefect_run import describe_start


def test_a_start_is_of_the_schedule_that_prefect_names(prefect_api: None) -> None:
    """A server names a schedule as the creator of a run, and knows no person's name."""

    @flow(persist_result=False)
    def started(kind: str, name: str) -> dict[str, object]:
        context = FlowRunContext.get()
        assert context is not None and context.flow_run is not None
        context.flow_run.created_by = CreatedBy(type=kind, display_value=name)
        return describe_start()

    with tags("nightly", "run:one"):
        assert started("SCHEDULE", "every-night")["by"] == "schedule every-night"
        start = started("USER", "Ada")
    assert (start["by"], start["tags"], start["deployment"]) == ("Ada", ["nightly"], "")
    assert describe_start() == {"by": getpass.getuser(), "flow_run": "", "deployment": "", "tags": []}
