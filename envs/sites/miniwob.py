"""MiniWoB++: 130 small pages that give the instruction and the reward themselves.

The pages come from the ``miniwob`` package (its HTML only; its Python is never imported). A page is
reset in place from a seed, which is several times faster than loading it again.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from envs.observation import SMALL
from envs.sites.static_server import StaticSite
from envs.types import SeedRange, SiteError, Split, WebTask
from envs.types.paths import AnyPath

VIEWPORT = (168, 224)
"""Smallest multiples of 28 around the 160 x 210 px of a task.

28 px is a merged patch of Qwen2-VL: 48 image tokens, no resize.
"""

EPISODE_MAX_TIME = 10_000_000
"""Virtual milliseconds until a page gives up by itself.

The default of 10 s would end episodes by the clock instead of by the horizon.
"""

STYLE = """
#reward-display, #click-canvas {display: none !important}
.ui-dialog {max-width: 160px !important}
"""
"""CSS added to the pages.

First MiniWoB's own score board and click trace, right of the task, are hidden: they show the reward
and earlier episodes. Then jQuery UI's dialogs are narrowed: their default width of 300 px does not
fit this viewport, so they would be placed left of it (in a wide window they are placed at the left
edge).
"""

# The seed must be set directly before the start: loading the page has used random numbers. Focus
# and the address would leak from the last episode.
_RESET = """(() => {
  if (document.activeElement) document.activeElement.blur();
  if (location.href.includes("#")) history.replaceState(null, "", location.pathname + location.search);
  core.EPISODE_MAX_TIME = %d;
  Math.seedrandom("%d");
  core.startEpisodeReal();
})()"""

_FACTS = """(() => {
  if (typeof WOB_DONE_GLOBAL === "undefined")  // of another tab or page, which an action opened
    return { instruction: "", done: false, facts: { raw_reward: 0, done: false, reason: "" } };
  const said = WOB_DONE_GLOBAL ? "" : core.getUtterance();
  return {
    instruction: typeof said === "string" ? said : said.utterance,
    done: WOB_DONE_GLOBAL === true,
    facts: {
      raw_reward: Number(WOB_RAW_REWARD_GLOBAL),
      done: WOB_DONE_GLOBAL === true,
      reason: String(WOB_REWARD_REASON || ""),
    },
  };
})()"""

RELOAD_KINDS = frozenset(
    {
        "book-flight",
        "book-flight-nodelay",
        "chase-circle",
        "click-pie",
        "click-pie-nodelay",
        "moving-items",
        "scroll-text",
        "scroll-text-2",
        "social-media",
        "terminal",
        "use-colorwheel",
        "use-colorwheel-2",
        "use-slider-2",
    }
)
"""Kinds whose pages keep something of an episode through the in-page reset.

They are those of the 130 where, after random actions and a reset, the next episode differed in a
pixel or an element from the same one on a newly loaded page, and their siblings without delays.
(click-pie, social-media and terminal still differ when loaded anew, and simon-says did once in
three; not traced.)
"""


def html_folder() -> Path:
    """Return the folder ``html`` of the installed ``miniwob`` package.

    Raises:
        SiteError: the package is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise SiteError("the package miniwob is not installed; run `make setup`")
    return Path(spec.submodule_search_locations[0]) / "html"


SEEDS = {
    Split.HELD_OUT: SeedRange(start=0, stop=10_000),
    Split.DEMO: SeedRange(start=100_000, stop=200_000),
    Split.TRAIN: SeedRange(start=200_000, stop=1_200_000),
    Split.VALIDATION: SeedRange(start=2_000_000, stop=2_010_000),
}
"""Page seeds by split, the same for every kind."""


FILE = Path(__file__).parents[2] / "datasets" / "tasks" / "miniwob.jsonl"
"""Tasks of the package's pages, with the numbers of each kind.

Kinds that have an oracle: the difficulty is the number of facts that must hold at the end, the
largest one if seeds differ. The horizon is the largest number of steps that the oracle needed on
150 seeds; where it is known, the number that it can need. A kind needs reading if words of the
instruction must be matched to an element or copied, not if a few fixed labels or a place are
enough. The others have the numbers of `UNKNOWN`. Most of those need something that the list of
elements does not show (long texts, colours of letters, drawings, the authors of a feed's posts), a
clock, or the clipboard, which the episodes of a browser share.
"""

UNKNOWN: dict[str, Any] = {"difficulty": 4, "horizon": 10, "needs_reading": True}
"""Numbers of kinds without an oracle."""


def import_tasks(folder: AnyPath | None = None) -> list[WebTask]:
    """Make a task for each page, by name, as `FILE` has it."""
    known = {task.kind: task for task in map(WebTask.model_validate_json, FILE.read_text().splitlines())}
    pages = sorted(path.stem for path in (Path(folder or html_folder()) / "miniwob").glob("*.html"))
    return [known.get(kind) or _task(kind) for kind in pages]


def _task(kind: str) -> WebTask:
    return WebTask(
        task_id=f"miniwob/{kind}", site="miniwob", kind=kind, path=f"/miniwob/{kind}.html", seeds=SEEDS, **UNKNOWN
    )


class MiniWobSite(StaticSite):
    """The `Site` of MiniWoB++."""

    stateless_pages = True
    final_screenshot = False  # at the end a cover hides the task
    style = STYLE
    observation = SMALL
    exclude = "#query, #sync-task-cover, #reward-display, #click-canvas"

    def __init__(self, folder: AnyPath | None = None) -> None:
        super().__init__("miniwob", folder or html_folder(), viewport=VIEWPORT)

    def reload_for(self, task: WebTask) -> bool:
        """Return True for kinds whose in-page reset is not complete."""
        return task.kind in RELOAD_KINDS

    def reset_script(self, task: WebTask, seed: int) -> str:
        """Seed the page's random numbers and start an episode."""
        return _RESET % (EPISODE_MAX_TIME, seed)

    def ready_script(self, task: WebTask) -> str:
        """Wait for pages that load data after a start."""
        return "WOB_TASK_READY === true"

    def facts_script(self, task: WebTask) -> str:
        """Read the page's own instruction, end and reward (raw: not discounted by time)."""
        return _FACTS
