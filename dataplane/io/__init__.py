"""Event loop of the data plane, and tracking of the processes that connect to it."""
