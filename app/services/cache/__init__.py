"""Actions on cached blocks, look-ups, dry runs, block lists and traces."""
