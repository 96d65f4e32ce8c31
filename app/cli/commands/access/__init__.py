"""Commands for identities: login, API tokens, the audit log."""
