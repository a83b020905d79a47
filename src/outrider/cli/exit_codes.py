"""Exit codes of the command line."""

from __future__ import annotations

CHECK_FAILED = 1
"""The command ran and found what it looks for: an incompatible pair, a text that differs where none may."""
USER_ERROR = 2
INTERNAL_ERROR = 70
OUTPUT_ERROR = 74
"""What the command writes cannot be written: the disk is full."""
INTERRUPTED = 130
CLOSED_PIPE = 141
"""Whoever read standard output has gone; what a shell shows for a program that SIGPIPE ends."""
