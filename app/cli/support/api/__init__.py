"""The API as commands use it: requests, failures, the event stream, names and abbreviations."""
