"""Fixed prompts and texts that show what a model does while it is trained, and the verdict: docs/behaviour.md."""
