"""Real processes against the memory protocol: torn reads, use after eviction, leaks. See `test_hammer`."""
