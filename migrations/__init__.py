"""Schema history: `versions/<date>_<number>_<slug>.py`, run at start by `app.store.base.migrate`."""
