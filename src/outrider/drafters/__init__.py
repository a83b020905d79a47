"""Drafters: what guesses tokens ahead of the target."""
