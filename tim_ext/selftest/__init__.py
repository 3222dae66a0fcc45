"""Whether the kernels of a device compute what those of the CPU do, and how fast: `tim-ext gpu-selftest`."""
