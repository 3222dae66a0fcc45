"""Runtime measurements: `pytest benchmarks` (sweeps), `python -m benchmarks.headline` (the claims)."""
