#!/usr/bin/env bash
# Gymnasium's vector step that is refused after an episode's end has already stepped the environments before it.
#
# Packages:  gymnasium 1.4.0. Python 3.11 or newer.
# Input:     SyncVectorEnv with AutoresetMode.DISABLED over three counters, of which the second ends at its first step.
#            Then step() once more, which that mode does not allow for an ended environment.
# Expected:  the call is refused and nothing has moved, so reset(options={"reset_mask": …}) and a new step go on
#            from where all three are.
# Seen:      AssertionError, and the first environment has taken the step; its observation and reward
#            are lost, and it is one step ahead of the third.
# So:        never catch that error and go on; reset ended environments before each step.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet gymnasium==1.4.0 2>/dev/null
venv/bin/python - <<'PYTHON'
import sys
from functools import partial

import gymnasium as gym
from gymnasium.vector import AutoresetMode, SyncVectorEnv


class Counter(gym.Env):
    observation_space = gym.spaces.Discrete(100)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, last):
        self.last = last

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self.count, {}

    def step(self, action):
        self.count += 1
        return self.count, 1.0, self.count >= self.last, False, {}


vector = SyncVectorEnv([partial(Counter, last) for last in (10, 1, 10)], autoreset_mode=AutoresetMode.DISABLED)
vector.reset(seed=0)
vector.step([0, 0, 0])
before = [env.unwrapped.count for env in vector.envs]
try:
    vector.step([0, 0, 0])
    error = None
except AssertionError as raised:
    error = str(raised)
after = [env.unwrapped.count for env in vector.envs]
print("gymnasium", gym.__version__)
print("steps of each environment, expected after the refusal:", before)
print("seen:", after, "and AssertionError with the text", error)
same = before == [1, 1, 1] and after == [2, 1, 1] and error is not None
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
