"""Routes for nodes, enrolment, pushes and managers."""
