"""Worked examples on data that ships with a dependency. Run one with `python -m tim_ext.examples.digits`."""
