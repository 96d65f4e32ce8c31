"""Schemas that all subjects share: common fields of records, record status, problems."""
