"""What the Model Zoo's fine-tuning models read, learnt through the project's own tasks on labelled rows.

params (data:, task:) + files of a data processor -> FeatureSet -> the one training loop -> the figures its users know
"""
