"""Writer plugins: they take the outputs of a task. One file per kind, found by its ``type``."""
