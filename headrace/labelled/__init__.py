"""Labelled data for fine-tuning: rows from the user's files, and the exact mapping between raw text and tokens."""
