"""Parts that all services share: principals, changes in one transaction, field checks, limiters, caches, redaction.

Imports no other subpackage of `app.services`.
"""
