"""Exit codes of the command line."""

from __future__ import annotations

CHECK_FAILED = 1
"""The command ran and found what it looks for: an incompatible pair, a text that differs where none may."""
USER_ERROR = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130
