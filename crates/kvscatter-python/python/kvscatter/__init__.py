"""Writes new keys and values into a KV cache."""
