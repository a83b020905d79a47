"""`python -m outrider` is the `outrider` command."""

from __future__ import annotations

import sys

from outrider.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
