"""Database access: engine, transactions, failures, listing, notifications, migrations, backup."""
