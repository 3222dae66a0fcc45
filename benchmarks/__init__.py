"""Runtime measurements: `python -m benchmarks.report`; `pytest benchmarks` runs the same suites."""

import sys
from pathlib import Path

# A source tree that was not built in place must not hide the tim_ext that is installed: its root goes last,
# and the package is imported before pytest puts the root first again.
_root = Path(__file__).parents[1]
if not any((_root / "tim_ext").glob("_C.*")):
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _root] + [str(_root)]

import tim_ext  # noqa: E402, F401
