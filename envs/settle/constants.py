"""Constants of settling: budgets of virtual time, and limits of each wait."""

from __future__ import annotations

EPOCH_SECONDS = 1_700_000_000.0
"""Date at which the page's clock begins (2023-11-14, UTC), where neither a task, a run nor a live
site sets one. Pages that print the date must print the same one."""

LEAD_MS = 14_400_000.0
"""Lead of the page's clock over ours: longer than a context is used in real time (`CONTEXT_SECONDS`
and an episode). It costs 10 ms, once a process, on a blank page; a day would cost 45."""

BEHIND_MS = 1000.0
"""Maximum lag of a live page's dates behind the real time when an action begins. Cookies, tokens
and signatures count seconds."""

CONTEXT_SECONDS = LEAD_MS / 2000.0
"""Real seconds after which a context is not used for another episode."""

BUDGET_MS = 500.0
"""Virtual milliseconds after an action. jQuery's default animation takes 400 ms; the cost is a few
real milliseconds."""

NAVIGATION_BUDGET_MS = 1000.0
"""Virtual milliseconds for loading a committed page; waiting for its network does not use them
up."""

FOLLOW_MS = 100.0
"""Virtual milliseconds for what a frame, an animation's end or a message led to. It is given again
as long as there is more."""

FRAMES = 10
"""Frames in which animations that run are heard of and ended; two are the rule, more come on loaded
machines."""

SAME_MS = 1000.0
"""Two readings of a stopped clock differ by less; a clock in use is ahead of a new one by
`LEAD_MS`."""

ROUNDS = 4
"""Number of times that it is given again: a page that changes at every look (a ticking display)
gets no more."""

REQUESTS_MS = 1.0
"""Virtual milliseconds for requests to begin and be answered before anything is drawn: any time
does, requests hold the clock."""

ANSWERED_SECONDS = 1.0
"""Real seconds without news of a request after which the clock is moved for it. Answers within it
come at the same virtual time in every run."""

SLICE_MS = 25.0
"""Virtual milliseconds at a time on a page whose open requests would hold its clock: a timer that
falls due while a request is on its way is early by this much at most."""

STARVATION_TASKS = 1000
"""Tasks without a timer after which the clock moves on."""

REAL_SECONDS = 10.0
"""Real seconds of one wait. The sites of this project need under 0.5 s on loaded machines."""

ANSWER_SECONDS = 1.0
"""Real seconds in which a page that is not stuck in a script answers a command to stop its
clock."""

SOCKET_SECONDS = 0.3
"""Real seconds in which an answer comes on a socket on which the page has just spoken (0.06 s in
the fixture)."""

SOCKET_QUIET_SECONDS = 0.02
"""Real seconds after a message until the next one is not a part of the same answer."""

BACKGROUND_SECONDS = 2.0
"""Real seconds for a worker that goes on for ever."""

BACKGROUND_LOOKS = 6
"""Looks, 25 ms apart and more on a loaded machine, without a sign of life from a page with workers.
A worker's timers cannot be seen; 150 ms is the longest that is waited for."""

PROCESS_ARGS = ("--renderer-process-limit=1",)
"""Chromium's arguments that give a browser context one clock. Contexts never share a process, so it
limits nothing else."""
