"""Database records: one module per kind of record, plain SQLAlchemy, no business rules.

Functions take a session and never commit: the service that opened a transaction commits it.
"""
