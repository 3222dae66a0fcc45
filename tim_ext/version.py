"""What this is and what it needs: read by the build and by every part of the package that names it."""

__version__ = "0.2.0.dev0"
OLDEST_TORCH = (2, 10)  # the stable ABI that the native libraries are built for; pyproject.toml repeats it
