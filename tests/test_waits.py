"""No wait without an end, and nothing at random: threads, what is no file, children that stand still."""
