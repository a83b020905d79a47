"""`Output`: through what a head under training speaks."""

from __future__ import annotations

from enum import Enum


class Output(Enum):
    """The output matrix of a head. Either starts as the target's rows of the draft vocabulary."""

    OWN = "own"  # a matrix of its own, trained
    TARGET = "target"  # the target's rows as they are; several heads share one copy in the files
