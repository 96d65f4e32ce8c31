"""Nodes, their enrolment and targets, pushes, managers, restarts."""
