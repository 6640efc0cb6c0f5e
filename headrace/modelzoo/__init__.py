"""The door for users of the Cerebras Model Zoo: their params, their records and their commands."""
