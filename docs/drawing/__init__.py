"""Draw the pictures of the documentation from the code. The wheel does not contain this package."""
