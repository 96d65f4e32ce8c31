"""Commands that show cached blocks or act on them."""
