"""Training of drafts on a target's own answers: prompts, answers, hidden states, recipes, the loop, what is written."""
