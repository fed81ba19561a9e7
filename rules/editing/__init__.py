"""Writing models.toml for the user: imports, additions, a first catalog."""
