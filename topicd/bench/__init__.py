"""Measuring loops: the same for `topicctl bench` and for the comparison with other systems in benchmarks/."""
