"""Times between the keys, moves, presses and releases of one action, in ms of the page's clock.

The page's clock stands still between steps, but typing and dragging take time: a page moves the
focus on in a timer, opens a drop zone in a frame, begins a drag after a delay. So the page is given
these times during an action (`VirtualClock.give`). They are those of a quick person (the
keystroke-level model of Card, Moran and Newell, 1980, has 0.08 s a key, 0.1 s for a press or a
release, 0.4 s between mouse and keyboard). They lie between the delays after which pages react and
those that change the meaning of an action.
"""

from __future__ import annotations

KEY_MS = 80.0
"""Time between two keys: longer than a few frames, shorter than a pause after which pages search
(150 to 300)."""

PRESS_MS = 120.0
"""Time between press and release: buttons arm within 100, a long press begins at 250 to 500."""

AGAIN_MS = 60.0
"""Time between press and release in a double click, and between its clicks. One click comes 120
after the other, within the 200 to 300 that pages wait for a second one."""

HAND_MS = 400.0
"""Time from the mouse to the keyboard, and before Enter. In it a page reacts to the focus or to the
last character (a search after a pause)."""

HOLD_MS = 350.0
"""Time between the press that begins a drag and its first move. Libraries that tell a drag from a
click by time want 200 to 300."""

MOVE_MS = 60.0
"""Time between two moves of a drag. Pages that sample moves do it every 16 to 50."""

DROP_MS = 300.0
"""Time at the end of a drag, before the last small move and the release."""

DROP_SECONDS = 3.0
"""Real seconds for the page's reaction at the end of a drag."""

KEY_SECONDS = 0.03
"""Real seconds that each key adds to the deadline of an action. With the page's time after it, a
key takes 0.003 to 0.015, by the machine's load."""

LONG_MS = 4000.0
"""Approximate limit for all keys of a long text or moves of a long way, so that it does not last
for minutes."""

FRAME_MS = 20.0
"""Minimum time between any two, so that a frame and the timers that are due run."""


def share(usual: float, count: int) -> float:
    """Return the milliseconds between each two of ``count`` keys or moves."""
    return max(FRAME_MS, min(usual, LONG_MS / max(count, 1)))
