"""Usage by tenant: the ledger, reports, retention."""
