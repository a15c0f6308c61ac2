"""Observations: an episode's view of a page, read from outside of the page.

One read-only ``DOMSnapshot.captureSnapshot`` (and one question for the focus) holds frames of any
origin, shadow roots, live form state, listeners and paint order. Everything after that is a pure
function of its arrays:

``snapshot`` decodes, ``occlusion`` (with ``clips`` and ``svg_shapes``) finds the element that a
click reaches, ``roles``, ``names`` and ``elements`` name the elements that can be acted on,
``reach`` finds a point of each, ``ids`` keeps names over the steps of an episode, ``text`` and
``marks`` render, ``hashes`` compares. ``visibility`` tells what a person sees of an element,
``states`` reads its states, and ``areas`` places the areas of image maps. `Observer` puts them
together, one for each episode. Nothing here acts on a page.
"""

from envs.observation.ids import IdBook
from envs.observation.observer import Observer, compose
from envs.observation.options import FULL, SMALL, ObservationOptions
from envs.observation.reading import Handle, Reading

__all__ = ["FULL", "SMALL", "Handle", "IdBook", "ObservationOptions", "Observer", "Reading", "compose"]
