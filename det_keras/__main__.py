"""`python -m det_keras` is `det`."""

from __future__ import annotations

import sys

from det_keras.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
