"""Texts of a policy's tokens, from the tokenizer that is stored with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer

from training.ledger.store import RunStore

FILE = "tokenizer.json"


@dataclass(slots=True)
class TokenTexts:
    """Decodes single tokens; without a tokenizer every text is empty."""

    tokenizer: Tokenizer | None = None
    _known: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, store: RunStore) -> TokenTexts:
        """Return the texts of a run's policy. All its versions have the same tokens."""
        files = sorted((store.root / "policies").glob(f"*/{FILE}"))
        return cls(_read(files[0]) if files else None)

    def of_ids(self, ids: Sequence[int]) -> list[str]:
        """Return the text of each token."""
        if self.tokenizer is None:
            return [""] * len(ids)
        for token in set(ids) - self._known.keys():
            self._known[token] = self.tokenizer.decode([token], skip_special_tokens=False)
        return [self._known[token] for token in ids]


@cache
def _read(path: Path) -> Tokenizer | None:
    """Read a tokenizer; ``None`` if it cannot be read, because the page shows ids then."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the library raises no narrower class
        return None
