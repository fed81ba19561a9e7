"""What each consumer expects of a release: file names, layout, form of the manifest."""
