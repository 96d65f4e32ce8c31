"""Sources of the generated files of deploy/grafana: queries, panels, a module for each dashboard, and alert rules."""
