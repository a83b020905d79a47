"""Progress on stderr: silent for short waits, a line that says what takes so long for the others."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType

WAIT = 2.0
"""Seconds before anything is shown."""
_REDRAW = 0.5
_LOG_EVERY = 10.0


class Progress:
    """Shows `label` and the seconds so far while the block runs: one live line on a terminal, rare lines in a log."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._stream = sys.stderr
        self._live = self._stream.isatty()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._show, daemon=True)
        self._drawn = False

    def say(self, label: str) -> None:
        """Changes the label; shown when the line is next drawn."""
        self._label = label

    def __enter__(self) -> Progress:
        self._begin = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:  # fmt: skip
        self._done.set()
        self._thread.join()
        if self._live and self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()

    def _show(self) -> None:
        wait = WAIT
        while not self._done.wait(wait):
            seconds = time.monotonic() - self._begin
            line = f"{self._label} ({seconds:.0f} s)"
            self._stream.write(f"\r\x1b[K{line}" if self._live else f"{line}\n")
            self._stream.flush()
            self._drawn = True
            wait = _REDRAW if self._live else _LOG_EVERY
