"""Routes for declared documents: apply, diff, export."""
