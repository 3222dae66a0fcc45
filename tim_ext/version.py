"""What this is: read by setup and by every part of the package that names it."""

__version__ = "0.2.0.dev0"
