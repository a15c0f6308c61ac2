"""Prefect flows: they compose what ``tasks_lib`` offers and hold no algorithm.

Importing this package sets Prefect up to be quiet, offline and patient, before Prefect itself is
imported. Whatever is set in the environment or in the user's Prefect profile wins.
"""

import ctypes
import os
import sys
from pathlib import Path

from tasks_lib.commands.startup import begin_command

if (
    sys.argv[0] == "-m"
):  # only while Python looks for the module of `python -m flows.NAME`, not where a program imports us
    begin_command(sys.orig_argv)

# glibc gives threads heaps of their own, and what is free in one is of no use to the others: 2 MB
# more every 1,000 episodes.
if "MALLOC_ARENA_MAX" not in os.environ and hasattr(ctypes.CDLL(None), "mallopt"):
    ctypes.CDLL(None).mallopt(-8, 1)  # M_ARENA_MAX; Prefect's workers have begun threads here: prefect.yaml sets it

_DEFAULTS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    # A first start migrates the database: 30 s on a busy laptop, Prefect waits 20 by default.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
    "PREFECT_LOGGING_LEVEL": "WARNING",
}
for _name, _value in _DEFAULTS.items():
    os.environ.setdefault(_name, _value)

if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ):
    # A proxy of the network is none for this machine's own servers; Prefect would wait for its own
    # in vain.
    _direct = os.environ.get("no_proxy", os.environ.get("NO_PROXY", "")).split(",")
    _direct += [host for host in ("127.0.0.1", "localhost", "::1") if host not in _direct]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*" if "*" in _direct else ",".join(filter(None, _direct))

if os.environ.get("PREFECT_API_URL") == "":
    del os.environ["PREFECT_API_URL"]  # Prefect would send events to a server without an address
_ephemeral = "PREFECT_API_URL" not in os.environ and not (Path.home() / ".prefect" / "profiles.toml").exists()
if not os.environ.get("PREFECT_API_URL"):
    # The run's own server, ended with a killed flow in the middle of its work, would tell the
    # terminal so; what fails in it fails its client.
    os.environ.setdefault("PREFECT_SERVER_LOGGING_LEVEL", "CRITICAL")
if _ephemeral:
    # No server and no profile: keep the ephemeral server's database with the project.
    os.environ.setdefault("PREFECT_HOME", str(Path(__file__).resolve().parents[1] / ".prefect"))
if _ephemeral or os.environ.get("PREFECT_API_URL", "").startswith("http://"):
    # Building TLS contexts for a plain-http API costs 47 ms of CPU for every Prefect task on Dask.
    # A profile may name an https one.
    os.environ.setdefault("PREFECT_API_TLS_INSECURE_SKIP_VERIFY", "true")
