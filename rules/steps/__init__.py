"""One module per arrow of the graph: what each step makes from what."""
