"""The command ``rollwright``: lists the flows and servers, and runs one by its short name.

``rollwright train …`` is ``python -m flows.train …``. Alone it reads the first line of each
module's docstring and imports none of them, so that it answers within a second.
"""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SERVERS = {
    "server": "envs.server",
    "master": "envs.server.master",
    "mcp": "envs.adapters.mcp",
    "openenv": "envs.adapters.openenv",
    "proxy": "training.proxy",
    "repl": "envs.repl",
}
"""Modules of servers and tools by their short names; those that cannot be run are not listed."""


def main() -> int:
    """Run the command, and return its exit status; ``python -m MODULE`` takes its place."""
    name, *arguments = sys.argv[1:] or [""]
    modules = {**flows(), **servers()}
    if name in ("", "-h", "--help", "help", "list"):
        print(listing(), end="")
        return 0
    short = name.removeprefix("flows.").replace("-", "_")
    module = modules.get(short) or (name if name in modules.values() else None)
    if module is None:
        print(f"error: {unknown(name, modules)}", file=sys.stderr)
        return 2
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def flows() -> dict[str, str]:
    """Return the modules of the flows by short name."""
    return {path.stem: f"flows.{path.stem}" for path in sorted((ROOT / "flows").glob("[!_]*.py"))}


def servers() -> dict[str, str]:
    """Return the modules of `SERVERS` that are there."""
    return {name: module for name, module in SERVERS.items() if _source(module) is not None}


def listing() -> str:
    """Return what ``rollwright`` alone prints."""
    lines = ["usage: rollwright NAME [OPTIONS]   (rollwright NAME --help says which)", ""]
    for title, modules in (("flows", flows()), ("servers and tools", servers())):
        if modules:
            width = max(map(len, modules)) + 2
            lines += [f"{title}:", *(f"  {name:{width}}{purpose(module)}" for name, module in modules.items()), ""]
    return "\n".join(lines)


def purpose(module: str) -> str:
    """Return the first line of a module's docstring, without importing it."""
    source = _source(module)
    assert source is not None, f"{module} is not there"
    return (ast.get_docstring(ast.parse(source.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def unknown(name: str, modules: dict[str, str]) -> str:
    """Return why a name is refused, with names that are near."""
    from envs.types import near  # half a second, which a listing saves

    return f"there is no {name!r}; {near(name, modules)}rollwright lists them: {', '.join(modules)}"


def _source(module: str) -> Path | None:
    """Return the file that ``python -m MODULE`` runs; ``None`` if there is none that does
    anything."""
    path = ROOT.joinpath(*module.split("."))
    files = [file for file in (path / "__main__.py", path.with_suffix(".py")) if file.is_file()]
    return next((file for file in files if "__main__" in file.read_text(encoding="utf-8")), None)
