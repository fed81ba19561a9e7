"""Driving an artifact in real time, and what is shown of it."""

BUDGET_MS = 50.0  # what a frame may take at 20 Hz
