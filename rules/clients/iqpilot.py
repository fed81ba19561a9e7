"""What IQPilot expects: the name of a model's one file."""

from rules.errors import ArtifactError
from rules.releasing.namespace import id_flaw


def artifact_name(model_id: str) -> str:
    """The file name of a compiled supercombo. Raises ArtifactError for a bad ID."""
    if flaw := id_flaw(model_id):
        raise ArtifactError(f"{model_id!r}: not a model ID: {flaw}", fix="rename the model")
    return f"driving_supercombo_{model_id}.pkl"
