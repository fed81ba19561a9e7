"""modelyard: models.toml to verified driving-model artifacts and releases, rebuilt only when stale."""
