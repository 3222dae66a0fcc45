"""The command line `tim-ext`, or `python -m tim_ext`: `main`, and a module for each command."""
