"""Memory of the cached bytes. Currently L1 only: sealed memfds that engines map. Eviction is not decided here."""
