"""Passes over the Memory-Centric IR, one file each, and the manager that runs them in order."""
