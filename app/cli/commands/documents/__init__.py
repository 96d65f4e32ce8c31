"""Commands for records as YAML or JSON documents."""
