"""Functions as tasks: enqueued with their arguments, run by workers in other processes. Reference: docs/queues.md."""
