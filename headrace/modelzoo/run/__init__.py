"""The Model Zoo's run.py: its flags, its params files, its records, on one device.

flags -> params files translated -> records opened and checked -> the project's own training, or evaluation
"""
