"""What a runtime's log tells of a failure."""
