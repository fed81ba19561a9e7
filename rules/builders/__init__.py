"""Where a compile runs. Every builder takes the same job and gives the same result."""
