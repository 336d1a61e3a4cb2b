"""The answer to "fastest": `ranking` computes it, and `words` has its sentences."""
