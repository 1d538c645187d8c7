"""Pages for a browser, each one file that needs nothing from elsewhere."""
