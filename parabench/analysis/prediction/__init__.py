"""Predict step times for more ranks or other links from measured parts of steps."""
