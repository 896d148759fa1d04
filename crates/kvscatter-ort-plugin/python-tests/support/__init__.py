"""Code that tests share: tensors in guarded memory, models, sessions, and the documents' rules in NumPy."""
