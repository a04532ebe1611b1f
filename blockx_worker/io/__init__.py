"""Sources of data outside the worker."""
