"""The single writer: carries out what the machines order and tells them what happened."""
