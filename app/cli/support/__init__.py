"""Code that several commands share: the HTTP client, tables, units, selectors, documents."""
