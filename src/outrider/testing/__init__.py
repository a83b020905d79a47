"""Shipped test tools: a toy target, scripted drafts, branching noise, contracts, an oracle."""
