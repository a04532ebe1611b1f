"""Call builders: they expand the configuration of a task into calls. One file per kind, found by its ``type``."""
