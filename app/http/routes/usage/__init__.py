"""Routes for usage by tenant."""
