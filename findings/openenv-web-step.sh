#!/usr/bin/env bash
# OpenEnv's web interface resets an environment by reset_async, and steps it by step although it has step_async.
#
# Packages:  openenv 0.10.0; gradio 6.31.0. Python 3.11 or newer.
# Input:     an environment that overrides reset, reset_async, step and step_async; each answers with its own name.
# Expected:  the web interface calls reset_async and step_async, as the WebSocket server does.
# Seen:      it calls reset_async in its event loop, and step in a thread of a pool.
# So:        an asynchronous environment needs a step too, which runs in another thread than its reset did.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > play.py <<'PYTHON'
import asyncio

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.env_server.web_interface import WebInterfaceManager


class Counter(Environment):
    def reset(self, seed=None, episode_id=None, **options):
        return Observation(metadata={"by": "reset"})

    async def reset_async(self, seed=None, episode_id=None, **options):
        return Observation(metadata={"by": "reset_async"})

    def step(self, action, timeout_s=None, **options):
        return Observation(metadata={"by": "step"})

    async def step_async(self, action, timeout_s=None, **options):
        return Observation(metadata={"by": "step_async"})

    @property
    def state(self):
        return State()


async def main():
    page = WebInterfaceManager(Counter(), Action, Observation)
    answers = [await page.reset_environment(), await page.step_environment({})]
    print(*(answer["observation"]["metadata"]["by"] for answer in answers))


asyncio.run(main())
PYTHON
python3 -m venv venv
venv/bin/pip install --quiet openenv==0.10.0 gradio==6.31.0 2>/dev/null
seen=$(venv/bin/python play.py 2>/dev/null | tail -n 1)
echo "expected: reset_async step_async; seen: $seen"
[ "$seen" = "reset_async step" ] && echo "as described" || { echo CHANGED; exit 1; }
