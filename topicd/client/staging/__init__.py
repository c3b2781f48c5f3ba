"""Records that become visible together and once: staged by many, published by one decision. See `stages`."""
