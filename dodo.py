"""The graph of models.toml, for doit: source → onnx → candidate → pkl → parts → manifest → release."""

from rules.tasks import Yard

yard = Yard("models.toml")
DOIT_CONFIG = yard.config
task_graph = yard.tasks
