"""LMCache's HTTP interface mapped to Larder: objects, quotas, status."""
