"""Browser signals of a page: paints, layout shifts, timings, costs, errors.

``collector.js`` runs in every document before its scripts, in an isolated world: it shares the
page's performance timeline and nothing else, so the page can neither see nor change it.
`SignalReader` reads it together with Chromium's own counters, in one round trip a step. ``build``
and ``aggregate`` are pure. The records are in ``envs.types.signals``.

Under CDP virtual time (Chromium 156), with the clock stopped between steps:

- Layout shifts arrive and have their exact values, but only drawn frames are compared. A move that
  is undone between two screenshots is never seen.
- First paint and the largest paint arrive in the first slice of time after the first screenshot,
  with their element and size. Their times are of the virtual clock and mean nothing, so they are
  absent.
- Event durations mix the real clock of the input with the page's virtual one, and long tasks have
  no length: both are absent.
- CPU durations, heap, nodes, layers, errors and requests are the same under either clock.
"""

from envs.signals.aggregate import aggregate
from envs.signals.reader import SignalReader

__all__ = ["SignalReader", "aggregate"]
