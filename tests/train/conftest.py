"""Lets the suites of training import the plain modules beside them, such as `tiny_recipe`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
