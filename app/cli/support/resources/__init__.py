"""What commands on resources share: verbs, options, output formats, documents."""
