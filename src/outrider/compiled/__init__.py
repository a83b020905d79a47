"""The compiled library where it is built: opening it, and those of its functions that need no model."""
