"""Text files -> BERT examples in TFRecord or CSV files, as the Model Zoo's scripts make them, in bounded memory.

metadata files -> text -> chunks -> tokens on disk        inputs, tokenize, token_store   (parallel)
tokens -> where each example lies, in a random order      pairs, windows, plan            (parallel)
places -> tokens, masks, bytes -> the files, in order     examples, masks, encode, write  (parallel)
"""
