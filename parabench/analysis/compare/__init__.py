"""Did it get slower: two sides, case by case."""
