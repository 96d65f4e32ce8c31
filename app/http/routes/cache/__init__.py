"""Routes for cached blocks and for actions on them."""
