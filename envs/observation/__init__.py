"""What an episode sees of a page, read from outside of it.

One read-only ``DOMSnapshot.captureSnapshot`` (and one question for the focus) holds frames of any origin, shadow roots, live form state,
listeners and paint order. Everything after that is a pure function of its arrays:

``snapshot`` decodes, ``occlusion`` (with ``svg_shapes``) finds what a click reaches, ``roles``,
``names`` and ``elements`` name what can be acted on, ``reach`` finds a point of it, ``ids`` keeps
names over the steps of an episode, ``text`` and ``marks`` render, ``hashes`` compares.
``visibility`` and ``states`` say what a person sees of an element and how it stands, ``areas``
where image maps have theirs. `Observer` puts them together, one for each episode. Nothing here acts
on a page.
"""

from envs.observation.ids import IdBook
from envs.observation.observer import Observer, compose
from envs.observation.options import FULL, SMALL, ObservationOptions
from envs.observation.reading import Handle, Reading

__all__ = ["FULL", "SMALL", "Handle", "IdBook", "ObservationOptions", "Observer", "Reading", "compose"]
