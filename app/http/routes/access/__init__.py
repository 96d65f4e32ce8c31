"""Routes for sessions, API tokens and the audit log."""
