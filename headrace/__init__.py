"""Headrace trains language models on one device, however small its memory, from raw text to an evaluated model."""
