"""Identities and their rights: credentials, sessions, API tokens, refusals, the audit log."""
