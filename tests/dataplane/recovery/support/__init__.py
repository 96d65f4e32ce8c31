"""Programs and helpers of the tests of restarts: supervised data planes, load, faults."""
