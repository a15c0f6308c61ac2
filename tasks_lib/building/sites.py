"""Prefect flow and task that build the recipes of sites."""

from __future__ import annotations

from collections.abc import Sequence

from prefect import flow, task

from envs.sites import build_site, find_recipe, recipe_files
from tasks_lib.processes.prefect_run import completed
from tasks_lib.processes.retries import WORKER_TASK


def names_to_build(names: Sequence[str]) -> list[str]:
    """Return the names of the recipes that need a build, and print those that need none.

    Args:
        names: Names of recipes; all without one. A group stands for the recipes of its hosts.

    Raises:
        ConfigError: There is no such recipe, or one is wrong.
    """
    members = [part for name in names or sorted(recipe_files()) for part in find_recipe(name).built_names]
    recipes = [find_recipe(name) for name in dict.fromkeys(members)]
    for recipe in recipes:
        if not recipe.served_by_process:
            print(f"{recipe.name}: kind {recipe.kind} needs no build")
    return [recipe.name for recipe in recipes if recipe.served_by_process]


@task(task_run_name="build-site-{name}", retries=1, **WORKER_TASK)
def build_recipe(name: str) -> str:
    """Build a recipe's environment and state, and return the folder.

    The folder is named by the recipe's hash, and a finished one is used as it is. So Prefect and
    Dask may run this again.
    """
    folder = build_site(find_recipe(name), lambda line: print(f"{name}: {line}", flush=True)).folder
    print(f"{name}: built in {folder}", flush=True)
    return str(folder)


@flow(name="build-sites", persist_result=False)
def build_sites(names: list[str]) -> list[str]:
    """Build recipes of sites on this machine, and return the folders.

    Args:
        names: Names of recipes; all without one. A group stands for the recipes of its hosts.
    """
    folders = [build_recipe(name) for name in names_to_build(names)]
    return completed(f"{len(folders)} sites are built", folders)
