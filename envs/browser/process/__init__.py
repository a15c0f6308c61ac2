"""Chromium processes and the connections to them.

``chromium`` starts one and ``pinned`` names the build, ``browsers`` keeps a few of them running,
``connection`` and ``states`` survive a lost connection, and ``cpu_guard`` notices a page that takes
more of the processor than it may. Nothing here knows a page, a task or a site.
"""
