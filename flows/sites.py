"""Build, list, start, check, clean and record the sites that are made of recipes.

A recipe (docs/site-recipes.md) says how a web application becomes a site of tasks.

    python -m flows.sites list
    python -m flows.sites build oscar
    python -m flows.sites check oscar
    python -m flows.sites start oscar --path /catalogue/
    python -m flows.sites clean
    python -m flows.sites record docs https://docs.example --path /guide/ --to my_sites

build makes what is missing, as a flow run where PREFECT_API_URL names a server. check plays the
recipe's requests to two instances and to a fork. start serves one until Ctrl-C. clean removes
builds that no recipe has any more, and containers of processes that have ended. record visits a
site, writes what it answers to an HTTP archive, and writes a recipe that serves it again offline.
Ends with 0 for success, 1 if a check sees a difference or a build fails, 2 if the arguments or the
recipe are wrong, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from envs.types import ConfigError, RollwrightError, SiteError
from tasks_lib.processes.startup_interrupt import STATUS, raise_on_interrupt


def main(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit status."""
    options = read_arguments(arguments)
    try:
        raise_on_interrupt()
        return run(options)
    except KeyboardInterrupt:
        print("interrupted: what is built stays", file=sys.stderr)
        return STATUS
    except RollwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1


def run(options: argparse.Namespace) -> int:
    """Run one of the command's actions, and return its exit status."""
    from envs.sites import clean_builds, find_engine, find_recipe, recipe_files  # takes seconds
    from tasks_lib.commands import sites

    match options.action:
        case "build":
            build(options.names)
        case "list":
            print("\n".join(sites.list_sites()))
        case "start":
            sites.serve_site(options.name, options.path)
        case "check":
            ok, lines = sites.check(options.name)
            print("\n".join(lines))
            return 0 if ok else 1
        case "record":
            print("\n".join(sites.record(options)))
        case "clean":
            recipes = [find_recipe(name) for name in recipe_files()]
            try:
                engine = find_engine()
            except SiteError:  # no engine runs, so no container is left
                engine = None
            if engine is not None:  # before their images
                print(f"{len(engine.remove_leftovers())} containers of ended processes removed")
            removed = clean_builds(recipes)
            print("\n".join([*(f"removed {folder}" for folder in removed), f"{len(removed)} builds removed"]))
    return 0


def build(names: Sequence[str]) -> None:
    """Build recipes: as a flow run of the server that PREFECT_API_URL names, else in this process."""
    from tasks_lib.building.sites import build_recipe, build_sites, names_to_build
    from tasks_lib.processes.prefect_api import check_api

    needed = names_to_build(names)
    if needed and check_api():
        build_sites(needed)
    else:
        for name in needed:
            build_recipe.fn(name)


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m flows.sites", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("build", help="build recipes; all without a name").add_argument("names", nargs="*")
    actions.add_parser("list", help="list recipes, and whether they are built")
    start = actions.add_parser("start", help="serve one instance until Ctrl-C")
    start.add_argument("name")
    start.add_argument("--path", default="/", help="path at which it is entered")
    actions.add_parser("check", help="compare two instances").add_argument("name")
    actions.add_parser("clean", help="remove builds that no recipe has any more")
    record = actions.add_parser("record", help="record a site, to serve it again offline")
    record.add_argument("name", help="name of the recipe that is written")
    record.add_argument("address", help="origin of the site, such as https://docs.example")
    record.add_argument(
        "--to", type=Path, required=True, metavar="FOLDER", help="folder of the recipe; see $ROLLWRIGHT_SITES"
    )
    record.add_argument("--path", action="append", default=[], help="path that is visited; may be given again")
    record.add_argument("--script", default="", help="Playwright function that acts in the page, as module:function")
    record.add_argument("--host", action="append", default=[], help="further origin that its pages may reach")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
