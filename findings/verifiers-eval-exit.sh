#!/usr/bin/env bash
# `vf-eval` of verifiers 0.4 exits 0 although every rollout failed.
#
# Packages:  verifiers 0.4.0. Python 3.11 or newer.
# Input:     a taskset of one task, two rollouts in a subprocess, and a model at a loopback address where no server
#            listens (as when the server has not started yet).
# Expected:  an exit status other than 0, as from a test runner or a batch tool: nothing was measured.
# Seen:      exit status 0. The summary has `reward —` and `err 1.00`; in traces.jsonl each episode has `"ok": false`,
#            and an empty list `errors`, as the error is inside its trace.
# So:        a script or CI job that runs `vf-eval` has to read `ok` of every line of traces.jsonl; neither the exit
#            status nor `errors` of the episode says that the evaluation failed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet verifiers==0.4.0 2>/dev/null
cat > sums.py <<'PYTHON'
import verifiers.v1 as vf


class SumTask(vf.Task[vf.TaskData]):
    @vf.reward(weight=1.0)
    async def reward(self, trace: vf.Trace) -> float:
        return 1.0


class SumTaskset(vf.Taskset[SumTask, vf.TasksetConfig]):
    def load(self) -> list[SumTask]:
        return [SumTask(vf.TaskData(idx=0, prompt="What is 1 + 1?"), self.config.task)]


__all__ = ["SumTaskset"]
PYTHON
status=0
PYTHONPATH=. PRIME_API_KEY=none venv/bin/vf-eval sums -m none -r 2 --no-push --output-dir out --env.agent.harness.id null \
    --env.agent.runtime.type subprocess --client.base-url http://127.0.0.1:9/v1 >/dev/null 2>&1 || status=$?
venv/bin/python - "$status" <<'PYTHON'
import json
import sys
from importlib.metadata import version
from pathlib import Path

(file,) = Path("out").rglob("traces.jsonl")
episodes = [json.loads(line) for line in file.read_text().splitlines()]
print("verifiers", version("verifiers"))
print(f"exit status: expected not 0, seen {sys.argv[1]}")
print("episodes:", [{name: episode[name] for name in ("ok", "errors")} for episode in episodes])
same = sys.argv[1] == "0" and [(episode["ok"], episode["errors"]) for episode in episodes] == [(False, [])] * 2
print("as described" if same else "CHANGED")
sys.exit(not same)
PYTHON
