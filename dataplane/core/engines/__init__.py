"""The engine side of the core: attach, store, read, report accesses, and expel engines."""
