"""Commands that show the state of the system and its events."""
