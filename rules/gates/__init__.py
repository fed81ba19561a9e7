"""What a compiled artifact must pass before it takes its final name: one small module for each family."""
