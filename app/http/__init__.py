"""HTTP: one file per noun, problems, health, metrics, the stream, the dashboard's files. Holds no rules of its own."""
