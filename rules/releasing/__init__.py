"""The pure parts of a release: names, pieces, reconciliation."""
