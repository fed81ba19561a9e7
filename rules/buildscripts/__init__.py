"""Flags in other projects' build scripts, read without running them."""
