"""Schemas that all subjects share: common fields of records, page requests, record status, problems."""
