"""Lets the suites of models import the plain module beside them, `hf_models`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
