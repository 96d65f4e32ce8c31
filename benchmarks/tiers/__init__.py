"""Figures of tiers behind memory. The files lie in the folder for temporary files: `TMPDIR` names another disk."""
