"""The names of the ways to write, as they are compared."""

OURS = "kvscatter"
AGAIN = "kvscatter, again"
NO_STATUS = "kvscatter, no status"
SKIP_ALL = "kvscatter, SkipAll"
MEMCPY = "cudaMemcpyAsync"
