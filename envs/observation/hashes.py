"""Hashes of observations and actions, which show that an episode goes in circles.

A page that looks the same but whose text changed has another DOM hash. One whose carousel turned
has another screen hash and the same DOM hash. Only when both are equal and the action is the same
again is it a repetition.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate, compress

import numpy as np

from envs.observation.roles import Kinds
from envs.types import Action, Element

KEPT_ATTRIBUTES = frozenset(
    {"href", "src", "alt", "title", "type", "name", "value", "placeholder", "role", "for", "action", "method"}
    | {"open", "hidden", "disabled", "readonly", "required", "min", "max", "step"}
)
"""Attributes that are part of the DOM hash, besides ``aria-*``.

Ids, classes, styles and ``data-*`` are often made anew on each visit.
"""

UNREAD = frozenset({"SCRIPT", "STYLE", "TEMPLATE", "NOSCRIPT"})


def dom_hash(kinds: Kinds) -> str:
    """Return a hash of the structure, text and form state of all documents, in 32 hexadecimal
    digits.

    Excluded elements, positions, colours, node numbers and ids are not in it; whether something is
    laid out at all is.
    """
    dom, strings = kinds.dom, kinds.dom.strings
    keep = _kept(kinds)
    depths: list[int] = []
    for above in dom.parent:
        depths.append(depths[above] + 1 if above >= 0 else 0)
    place = list(accumulate(keep))  # a node's number among those that are kept
    used = (dom.strings[name] for name in np.unique(dom.attribute_names).tolist())
    kept = sorted(name for name in used if name in KEPT_ATTRIBUTES or name.startswith("aria-"))
    parts = [
        *compress(dom.name, keep),
        *map(str, compress(depths, keep)),
        *("+" if box >= 0 else "-" for box in compress(dom.box_of, keep)),
        *(strings[value] if value >= 0 else "" for value in compress(dom.value, keep)),
        *(
            f"{place[node]}{name}={dom.string(value)}"
            for name in kept
            for node, value in dom.having(name).items()
            if keep[node]
        ),
        *(f"{place[node]}={dom.typed[node]}" for node in sorted(dom.typed) if keep[node]),
        *(f"{place[node]}*" for node in sorted(dom.checked | dom.selected) if keep[node]),
    ]
    return blake2b("\n".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _kept(kinds: Kinds) -> bytes:
    """Return 1 for nodes in the hash: not excluded ones, code, or what style sheets put before and
    after elements."""
    dom = kinds.dom
    left_out = bytearray(kinds.excluded)
    for node in (*dom.named(*UNREAD), *dom.pseudo):
        left_out[node : dom.end[node] + 1] = b"\1" * (dom.end[node] + 1 - node)
    return bytes(left_out.translate(bytes([1, 0]) + bytes(254)))


def screen_hash(screenshot: bytes) -> str:
    """Return a 64-bit perceptual hash of a picture as 16 hexadecimal digits.

    It is pHash: the signs of the low frequencies of a 32 x 32 cosine transform.
    """
    import imagehash  # imported here: it loads scipy, which the web side else does without
    from PIL import Image

    with Image.open(io.BytesIO(screenshot)) as image:
        return str(imagehash.phash(image))


def action_signature(action: Action, elements: Sequence[Element]) -> str:
    """Return an action as text, its element named by its semantic id.

    For example ``type search_form.query 'shoes'``. Two actions with equal signatures do the same
    even if the element's number changed between them.
    """
    lasting = {element.index: element.id or f"#{element.index}" for element in elements}
    known = type(action).model_fields
    dumped = action.model_dump(exclude={"type"})
    fields = {name: value for name, value in dumped.items() if value != known[name].default}
    words: list[str] = [action.type]
    for name in sorted(fields, key=lambda name: (not _names_element(name), name)):
        value = fields[name]
        words.append(lasting.get(value, f"#{value}") if _names_element(name) else repr(value))
    return " ".join(words)


def _names_element(field: str) -> bool:
    return field == "element" or field.endswith("_element")
