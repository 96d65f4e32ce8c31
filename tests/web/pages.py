"""Addresses of the dashboard's pages, with one tenant, pin and node of the fixtures."""

PAGES = ("", "tenants", "tenants/chat", "pins", "pins/chat-system-prompt", "nodes", "nodes/gpu-a1", "blocks", "policy",
         "changes", "events", "usage", "settings")  # fmt: skip
