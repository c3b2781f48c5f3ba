"""What the dashboard is told: the pulse of the daemon, lists that are sorted, records that are searched."""
