"""Adapters: other frameworks' environments over `envs.open_env`.

Each module translates one framework's calls and holds no logic of pages, rewards or text. Modules
import their framework, so nothing is imported here; ``docs/frameworks.md`` says which extra each
one needs.
"""

from envs.adapters.shared_host import close_hosts, on_host, shared_host

__all__ = ["close_hosts", "on_host", "shared_host"]
