"""Declared documents: parse, plan, apply, export, and the document that is applied at startup."""
