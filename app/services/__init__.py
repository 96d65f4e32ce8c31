"""What can be asked for: checks intent, changes records in one transaction, and puts answers together.

Knows no HTTP. Raises `app.errors` alone.
"""
