"""The notebooks of docs/tutorials: run them, and keep what they show."""
