"""One batch of tasks from what users pass to a Result: inputs -> batch -> one operator call -> result."""
