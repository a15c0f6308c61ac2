"""Consumption: the groups of the next batch, oldest first, where slow groups may be overtaken.

Symbols: B places in each batch; v the version that the batch updates; a group that was admitted at
version a has the deadline ``a + eta``, the last version at which it may be consumed; ``L(u)`` the
live groups (admitted, not consumed) with a deadline of u or before.

Policy: take the B oldest ready groups, if the remaining ones can still be consumed in time, else
wait. "In time" is Hall's condition: versions v + 1 to u have ``(u - v) * B`` places, so afterwards
``L(u) <= (u - v) * B`` must hold for each ``u >= v``.

No group is ever late. Let I(v) be: ``L(u) <= (u - v + 1) * B`` for each u >= v.

1. Admission keeps I(v). A group that is admitted at a <= v adds to L(u) for u >= a + eta only.
   Admission leaves at most ``(eta + a + 1) * B`` groups accepted or running, of which v * B are
   consumed, so all live ones are at most ``(a + eta - v + 1) * B <= (u - v + 1) * B``.
2. A batch turns I(v) into I(v + 1): that is the condition it is given out on. A group that is left
   out or killed only lowers L.
3. So with ``u = v``: at most B groups have the deadline v, and the condition at u = v says that
   none of them is left behind.

No group waits for ever. If at least B groups are live and all of them are ready, the B oldest are
taken: for each u either B of L(u) go, and I(v) gives the condition, or all of them, and L(u) = 0.
If fewer than B are live, admission has room for one more, unless R_max are running or version v is
not yet published. Else a group is running. Running groups end, and so do publications.

No rule that keeps the bound waits less. All choices of B ready groups leave at least as many of
each L(u) behind as the B oldest do (deadlines rise with the order of admission). So where this rule
waits, every such rule has to wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from training.pacing.admission import Pace


@dataclass(frozen=True, slots=True)
class LiveGroup:
    """A group that is admitted and not yet consumed."""

    number: int
    """Number of the group; within one version, numbers rise in order of admission."""
    version: int
    """Newest policy version that every engine served at its admission; of a restarted group, at the
    last one."""
    ready: bool
    """True when the group finished with something to learn from; False while it is under way."""


def next_batch(pace: Pace, version: int, live: Sequence[LiveGroup]) -> tuple[int, ...] | None:
    """Choose the groups of the batch that makes ``version + 1``; None to wait.

    Where the bound cannot be kept any more (a run that goes on with a smaller eta), the batch is
    the B oldest groups as soon as they are ready; ``algorithm.stale_limit`` then leaves out the
    episodes that are too old.

    Args:
        pace: B and eta; R_max is not used.
        version: The trainer's version: the number of batches that were consumed.
        live: Every admitted group that is neither consumed nor left out, in any order.

    Returns:
        The numbers of B ready groups, in order of admission.
    """
    ordered = sorted(live, key=_age)
    chosen = tuple(group.number for group in ordered if group.ready)[: pace.batch]
    if len(chosen) < pace.batch:
        return None
    taken = set(chosen)
    remaining = [group for group in ordered if group.number not in taken]
    overtook = [group.number for group in ordered[: pace.batch]] != list(chosen)
    return chosen if not overtook or fits(pace, version, remaining) else None


def _age(group: LiveGroup) -> tuple[int, int]:
    return group.version, group.number


def fits(pace: Pace, version: int, remaining: Sequence[LiveGroup]) -> bool:
    """Check Hall's condition for the remaining groups.

    Oldest first, the n-th one (from 0) is consumed at ``version + 1 + n // B`` at the latest.
    """
    ordered = sorted(remaining, key=_age)
    return all(
        version + 1 + place // pace.batch <= group.version + pace.staleness for place, group in enumerate(ordered)
    )
