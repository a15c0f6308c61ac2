"""Logs errors of work that is done again and again."""

from __future__ import annotations

import logging


class FailureLog:
    """Logs why repeated work fails: each error once, until another one or a success follows."""

    def __init__(self, logger: logging.Logger, message: str) -> None:
        self._logger, self._message = logger, message
        self._last = ""

    def note(self, error: Exception | None) -> None:
        """Note how one round ended; ``None`` is a success."""
        last, self._last = self._last, "" if error is None else repr(error)
        if error is not None and self._last != last:
            self._logger.error(self._message, exc_info=error)
