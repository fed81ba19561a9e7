"""The behaviour version that a model's files suggest, where nobody says one."""

from collections.abc import Mapping
from pathlib import Path

from rules.networks import onnxfile

SUPERCOMBO = "v15"
ACTION = "v15"  # the newest that steers by the head `action`; v14's scale cannot be told from it
SEVERAL_POLICIES = "v12"
ONE_POLICY = "v11"
POLICY_ROLES = ("driving_policy", "driving_on_policy", "driving_off_policy")


def suggested(files: Mapping[str, Path]) -> str:
    """The version of a driving model by its ONNX files, by role; raises SourceError for what is no ONNX."""
    policies = [files[role] for role in POLICY_ROLES if role in files]
    if not policies:
        return SUPERCOMBO
    if any("action" in (onnxfile.output_slices(onnxfile.read(path).metadata) or {}) for path in policies):
        return ACTION
    return SEVERAL_POLICIES if len(policies) > 1 else ONE_POLICY
