"""The operations of the LMCache protocol: register, look up, store, retrieve, free, report."""
