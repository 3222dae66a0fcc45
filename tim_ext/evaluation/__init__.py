"""Methods compared on many tasks: running, tables, tuning, theory, plots, the paper."""
