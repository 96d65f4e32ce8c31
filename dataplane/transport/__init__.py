"""Sockets and the loop that serves them. Holds no rules: it decodes, asks the core, and sends the answer."""
