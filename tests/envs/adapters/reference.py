"""Reference episodes: one for each site, played through `open_env` and recorded; and a canary.

A test plays the same texts through an adapter and compares what came out, by hash. The canary is a
task on a page that shows what it finds in the browser's stores, and then writes there: in an
episode of its own it finds nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import orjson

from envs import Observation, SeedRange, Split, StaticSite, StepResult, WebTask, open_env_sync
from envs.sites import build_of, find_recipe
from envs.types import Trajectory

TERMINATE = '{"action": "terminate"}'

SCRIPTS: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "miniwob/enter-text": (7, ('type [1] "Nathalie"', "click [2]")),
    "miniwob/click-button-sequence": (7, ("click [99]", "click [2]")),  # no such element; then the wrong one
    "bundled/shop-open/200000/0": (None, ('type [8] "Zephra Pillow"', "click [9]", "click [12]", TERMINATE)),
    "bundled/directory-open/200000/0": (None, ("click [2]", "click [13]", TERMINATE)),
    "bundled/tracker-open/200000/0": (None, ("click [4]", TERMINATE)),  # another ticket is shown
    "design2code/1": (None, ('{"action": "submit", "html": "<p>Nothing of it"}',)),
}
"""Seed and texts of an episode by task id; `RECIPES` are among them where their sites are built."""
RECIPES: dict[str, tuple[int | None, tuple[str, ...]]] = {
    "oscar/oscar-open/1": (0, ('type [7] "Yarrow Urn"', "click [8]", "click [15]", TERMINATE)),
    "trac/trac-open/1": (0, ('type [2] "#1"', "click [3]", TERMINATE)),
}
"""The same on site recipes; each ends well."""
MISSING = [task for task in RECIPES if not build_of(find_recipe(task.partition("/")[0])).finished]
"""Those whose sites are not built here."""
SCRIPTS |= {task: script for task, script in RECIPES.items() if task not in MISSING}

VOLATILE = frozenset(["seconds", "episode_id", "group_id"])
"""Fields of a record that differ between equal episodes."""
PORT = re.compile(r"(127\.0\.0\.1|localhost):\d+")
SERVED = frozenset(["csrfmiddlewaretoken", "__FORM_TOKEN", "created"])
"""Names of elements whose value or content recipes' servers draw anew: form tokens, the time."""


def canonical(value: Any) -> Any:
    """A record without what differs between equal episodes: times, ids, ports, tokens of forms."""
    if isinstance(value, dict):
        left_out = VOLATILE | {"value", "content"} if value.get("name") in SERVED else VOLATILE
        return {key: canonical(item) for key, item in value.items() if key not in left_out}
    if isinstance(value, list):
        return [canonical(item) for item in value]
    return PORT.sub(r"\1:PORT", value) if isinstance(value, str) else value


def digest(value: Observation | Trajectory | dict[str, Any]) -> str:
    """sha256 of the canonical form of an observation or trajectory, or of its JSON."""
    data = value if isinstance(value, dict) else value.model_dump(mode="json")
    return hashlib.sha256(orjson.dumps(canonical(data), option=orjson.OPT_SORT_KEYS)).hexdigest()


def without_texts(trajectory: Trajectory | dict[str, Any]) -> dict[str, Any]:
    """A trajectory's JSON without the model's texts, for actions that came as arguments."""
    data = trajectory if isinstance(trajectory, dict) else trajectory.model_dump(mode="json")
    left_out = ("response", "form")
    return {
        **data,
        "steps": [{key: value for key, value in step.items() if key not in left_out} for step in data["steps"]],
    }


def without_pictures(trajectory: Trajectory | dict[str, Any]) -> dict[str, Any]:
    """A trajectory's JSON without its pictures, for browsers that make none, or others."""
    data = trajectory if isinstance(trajectory, dict) else trajectory.model_dump(mode="json")
    steps = [{**step, "screenshot": ""} for step in data["steps"]]
    return {**data, "steps": steps, "final_screenshot": ""}


@dataclass(frozen=True)
class ReferenceEpisode:
    """An episode as `open_env` plays it."""

    task: str
    seed: int | None
    texts: tuple[str, ...]
    """The model's turns."""
    steps: tuple[StepResult, ...]
    """Results of the reset and of each step."""
    trajectory: Trajectory

    @property
    def reward(self) -> float:
        assert self.trajectory.reward.score is not None
        return self.trajectory.reward.score

    @property
    def observations(self) -> list[str]:
        """Digests of the observations, that of the reset first."""
        return [digest(step.observation) for step in self.steps]

    @property
    def screenshots(self) -> list[str]:
        """sha256 of the screenshots, that of the reset first."""
        return [hashlib.sha256(step.screenshot).hexdigest() for step in self.steps]


@cache
def reference(task: str) -> ReferenceEpisode:
    """Play a script of `SCRIPTS` through `open_env`."""
    seed, texts = SCRIPTS[task]
    with open_env_sync(task, seed=seed) as env:
        steps = [env.reset(), *(env.step(text) for text in texts)]
        assert steps[-1].done and env.trajectory is not None
        return ReferenceEpisode(task, seed, texts, tuple(steps), env.trajectory)


CANARY = WebTask(
    task_id="canary/stores",
    site=f"{__name__}:canary_site",
    kind="canary",
    path="/index.html",
    instruction="Say what the page found.",
    difficulty=1,
    horizon=5,
    seeds={Split.TRAIN: SeedRange(start=0, stop=1000)},
)
"""Its first page lists what it found: ``found: nothing`` in an isolated episode."""

CANARY_PAGE = """<!DOCTYPE html><title>Canary</title><p id=found>found: …</p><button onclick="keep()">Write</button>
<script>
const found = [document.cookie, localStorage.getItem("k"), sessionStorage.getItem("k"), window.name].filter(Boolean)
document.getElementById("found").textContent = "found: " + (found.join(",") || "nothing")
function keep() {
  document.cookie = "k=cookie"; localStorage.setItem("k", "local"); sessionStorage.setItem("k", "session"); window.name = "name"
}
</script>"""


@cache
def canary_site() -> StaticSite:
    """The site of `CANARY`."""
    folder = Path(mkdtemp(prefix="canary-"))
    (folder / "index.html").write_text(CANARY_PAGE)
    return StaticSite(f"{__name__}:canary_site", folder)


def canary_file(folder: Path) -> Path:
    """A task file with `CANARY` alone, for adapters that take one."""
    path = folder / "canary.jsonl"
    path.write_text(CANARY.model_dump_json() + "\n")
    return path
