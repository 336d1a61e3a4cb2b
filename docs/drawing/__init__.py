"""The pictures of the pages, drawn from what the code does. Not shipped."""
