"""What a client publishes while the daemon is away: a file channel, drained once and in order."""
