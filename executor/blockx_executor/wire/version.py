"""The version that worker and executor compare at attach; both distributions are released together."""

VERSION = "0.1.0"
