"""Puts files of the task's folder into file fields and file choosers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from envs.actions.context import ActionContext, Effect
from envs.actions.dom_queries import Nodes
from envs.actions.errors import ActionError, closest_names, shorten
from envs.actions.fields import click_field, find_field
from envs.types import ErrorCode, Upload

CHOOSER_SECONDS = 2.0
"""Real seconds for a click to open a file chooser (it takes 0.01 s). Only an element that opens none costs them."""


async def upload(context: ActionContext, nodes: Nodes, action: Upload) -> Effect | ActionError:
    """Put files of the task's folder into a file field or file chooser.

    A file chooser is what a click on the target opens.
    """
    paths = resolve_files(context.files, action.files)
    if isinstance(paths, ActionError):
        return paths
    field = await find_field(context, nodes, action)
    if isinstance(field, ActionError):
        return field
    own, facts, called = field.own, field.facts, field.called
    if facts.disabled:
        return field.disabled_error()
    if facts.file:
        if len(paths) > 1 and not facts.multiple:
            return ActionError(ErrorCode.BAD_ACTION, f"{called} takes one file, not {len(paths)}")
        await context.cdp.send("DOM.setFileInputFiles", {"files": paths, "objectId": own})
        return field.effect
    assert field.spot is not None
    async with context.intercept.file_choosers() as chosen:
        arrived = await click_field(context, nodes, action, field.spot)
        if isinstance(arrived, ActionError):
            return arrived
        try:
            async with asyncio.timeout(CHOOSER_SECONDS):
                opened = await chosen
        except TimeoutError:
            return ActionError(ErrorCode.NOT_A_FILE_FIELD, f"{called} opens no file chooser", "name the file field")
    if len(paths) > 1 and opened["mode"] == "selectSingle":
        return ActionError(ErrorCode.BAD_ACTION, f"{called} takes one file, not {len(paths)}")
    await context.cdp.send("DOM.setFileInputFiles", {"files": paths, "backendNodeId": opened["backendNodeId"]})
    return Effect(arrived.point)


def resolve_files(folder: Path | None, names: tuple[str, ...]) -> list[str] | ActionError:
    """Absolute paths of files of the task's folder.

    Links and ``..`` do not lead out of it.
    """
    root = folder.resolve() if folder else None
    found = [path for path in root.rglob("*") if path.is_file() and path.resolve().is_relative_to(root)] if root else []
    there = {str(path.relative_to(root)): path for path in sorted(found)} if root else {}
    paths = []
    for name in names:
        # Looked up among the files that are there: nothing outside of the folder can even be asked for.
        if name not in there:
            listed = ", ".join(list(there)[:8]) or "none"
            like = tuple(f'"{each}"' for each in closest_names(name, there))
            hint = f"its files are {listed}"
            return ActionError(ErrorCode.NO_SUCH_FILE, f"the task has no file {shorten(name)!r}", hint, like)
        paths.append(str(there[name].resolve()))
    return paths
