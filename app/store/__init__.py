"""Records in the database: one file per noun, plain SQLAlchemy, no rules.

Functions take a session and never commit: a transaction belongs to the service that opened it.
"""
