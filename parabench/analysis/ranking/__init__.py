"""The answer to "fastest": `ranking` and `parts` compute its tables, and `sentences` describes them."""
