"""The repository, and python_train in it, which is not installed."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

if str(ROOT) not in sys.path:
    sys.path.append(str(ROOT))  # last: an installed tim_ext comes first
