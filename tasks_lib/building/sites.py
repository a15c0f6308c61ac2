"""Prefect task that builds a site's recipe."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from envs.sites import build_site, find_recipe
from tasks_lib.processes.retries import is_retriable


@task(
    task_run_name="build-site-{name}",
    retries=1,
    retry_delay_seconds=2,
    retry_condition_fn=is_retriable,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def build_recipe(name: str) -> str:
    """Build a recipe's environment and state, and return the folder.

    The folder is named by the recipe's hash, and a finished one is used as it is. So Prefect and
    Dask may run this again.
    """
    return str(build_site(find_recipe(name), lambda line: print(f"{name}: {line}", flush=True)).folder)
