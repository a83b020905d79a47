"""Targets: models that extend, score and commit certain tokens."""
