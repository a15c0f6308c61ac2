#!/usr/bin/env bash
# A NumPy array in an observation's metadata is served by openenv-core 0.3.0, and refused by openenv 0.10.0.
#
# Packages:  openenv-core 0.3.0; openenv 0.10.0; numpy 2.4.4. Python 3.11 or newer.
# Input:     an environment whose reset returns Observation(metadata={"elapsed": numpy.array([0.5])}), asked for one
#            reset by each package's own client over its own WebSocket server. Gymnasium environments give such
#            arrays: OpenEnv's BrowserGym environment puts BrowserGym's observation into the metadata so.
# Expected:  both servers answer, as both take the observation when it is built.
# Seen:      0.3.0 answers; 0.10.0 answers with the error "Unable to serialize unknown type: numpy.ndarray".
# So:        turn arrays into lists before an Observation is made; the older release does not show that it is needed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
cat > serve.py <<'PYTHON'
import asyncio
import socket
import threading
import time

import numpy
import uvicorn
from openenv.core import GenericEnvClient
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Clock(Environment):
    def reset(self, seed=None, episode_id=None, **options):
        return Observation(done=False, reward=0.0, metadata={"elapsed": numpy.array([0.5])})

    def step(self, action, timeout_s=None, **options):
        return self.reset()

    @property
    def state(self):
        return State()


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
app = create_app(Clock, Action, Observation, env_name="clock")
server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="critical"))
threading.Thread(target=server.run, daemon=True).start()
while not server.started:
    time.sleep(0.1)


async def main():
    async with GenericEnvClient(base_url=f"http://127.0.0.1:{port}") as client:
        try:
            await client.reset()
            print("answered")
        except RuntimeError as error:
            print(error)


asyncio.run(main())
PYTHON
declare -A seen
for package in openenv-core==0.3.0 openenv==0.10.0; do
    python3 -m venv --clear venv
    venv/bin/pip install --quiet "$package" numpy==2.4.4 2>/dev/null
    seen[$package]=$(venv/bin/python serve.py 2>/dev/null | tail -n 1)
    echo "$package: expected: answered; seen: ${seen[$package]}"
done
[ "${seen[openenv-core==0.3.0]}" = answered ] && [[ ${seen[openenv==0.10.0]} == *"Unable to serialize unknown type"*ndarray* ]] && echo "as described" || { echo CHANGED; exit 1; }
