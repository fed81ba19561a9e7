"""modelyard: models.toml → verified driving-model artifacts, manifests and releases, rebuilt only when stale."""
