"""Inject faults into whole sessions. Each family tries one kind of fault many times, at random places and times."""
