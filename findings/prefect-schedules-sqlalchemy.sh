#!/usr/bin/env bash
# With SQLAlchemy 2.1, which Prefect allows, its server says that it is healthy, but schedules create no runs.
#
# Packages:  prefect 3.8.8 with sqlalchemy 2.1.9, then 2.0.58 (fastapi 0.150.0 with both). Needs Python 3.10
#            to 3.12, curl.
# Input:     a deployment with an hourly schedule, on a new server.
# Expected:  within a minute, runs in state Scheduled; or pip, or the server at its start, refuses the
#            version.
# Seen:      pip finds no conflict, the server answers /api/health and takes the deployment, and no run is
#            created. Only its log has the scheduler's error, "Can't evaluate bulk DML statement". With 2.0.58
#            there are runs.
# So:        pin sqlalchemy below 2.1 beside prefect 3.8.
set -euo pipefail
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || { kill "$server"; wait "$server" || true; }; rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
export DO_NOT_TRACK=1 PREFECT_SERVER_ANALYTICS_ENABLED=false PREFECT_API_URL=http://127.0.0.1:$port/api
cat > deploy.py <<'PYTHON'
import asyncio
from datetime import timedelta

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import IntervalSchedule


async def main() -> None:
    hourly = DeploymentScheduleCreate(schedule=IntervalSchedule(interval=timedelta(hours=1)), active=True)
    async with get_client() as client:
        await client.create_deployment(await client.create_flow_from_name("demo"), "hourly", schedules=[hourly])
        for _ in range(30):
            if runs := await client.read_flow_runs():
                break
            await asyncio.sleep(2)
    print(len(runs))


asyncio.run(main())
PYTHON
scheduled() { # SQLALCHEMY: how many runs a new server has created after a minute
    venv/bin/pip install --quiet prefect==3.8.8 fastapi==0.150.0 "sqlalchemy==$1" >&2
    venv/bin/pip check >&2
    export PREFECT_HOME=$folder/$1
    venv/bin/prefect server start --host 127.0.0.1 --port "$port" > "$1.log" 2>&1 &
    server=$!
    curl --silent --fail --output health --retry 90 --retry-delay 2 --retry-all-errors "$PREFECT_API_URL/health"
    venv/bin/python deploy.py > "$1.runs"
    kill "$server"
    wait "$server" || true
    server=
}
for version in 2.1.9 2.0.58; do
    scheduled $version
    errors=$(grep -c "^sqlalchemy.*bulk DML" $version.log || true)
    echo "sqlalchemy $version: expected runs, seen $(cat $version.runs); errors in the log: $errors"
done
if [ "$(cat 2.1.9.runs)" = 0 ] && [ "$(cat 2.0.58.runs)" -gt 0 ]; then
    echo "as described"
else
    echo "CHANGED"
    exit 1
fi
