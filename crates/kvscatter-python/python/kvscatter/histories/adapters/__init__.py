"""Adapters for engines. Each module imports its engine and has one class, whose argument is a variant or a model."""
