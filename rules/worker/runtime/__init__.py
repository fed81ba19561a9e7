"""What a runtime does with an artifact: frames in, decoded messages out, at 20 Hz. No compile imports it."""
