"""Schemas of nodes, enrolment, pushes, managers and restarts."""
