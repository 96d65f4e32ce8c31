"""Database access: engine, transactions, failures, listing, keyed reads, notifications, migrations, backup."""
