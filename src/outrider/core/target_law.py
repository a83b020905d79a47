"""`TargetLaw`: the law after every logits processor, at any node, with the node's own history."""
