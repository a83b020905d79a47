"""Lets the identity suites import the plain modules beside them, such as `toy_cells` and `law_cells`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
