"""What the process tells about itself: facts for the dashboard, metrics, logs, spans. Decides nothing."""
