"""Memory of the cached bytes: sealed memfds that engines map, and the named segment of LMCache clients. Eviction is not
decided here."""
