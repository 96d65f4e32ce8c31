"""Rows of nodes, enrolment, pushes and managers, and the leader lock."""
