"""Comparing runs: what differs between them, what each variable moved, and whether a ranking would be honest."""
