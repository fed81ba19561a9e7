"""What an artifact is and whether it is sound, without unpickling it or importing what it names."""

from rules.inspection.artifact import Report, flaw, inspect

__all__ = ["Report", "flaw", "inspect"]
