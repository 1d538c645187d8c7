"""The HTTP side: the only place that imports the web framework."""
