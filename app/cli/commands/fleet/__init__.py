"""Commands for nodes, their engines, pushes and managers."""
