"""Where function code comes from: providers of immutable views, one per epoch."""

from blockx_worker.functions.audit import AllowListFile, parse_allow_list
from blockx_worker.functions.directory import DirectoryFunctionProvider, load_directory
from blockx_worker.functions.static import StaticFunctionProvider
from blockx_worker.functions.view import FunctionDescription, FunctionProblem, LoadedView

__all__ = [
    "AllowListFile",
    "DirectoryFunctionProvider",
    "FunctionDescription",
    "FunctionProblem",
    "LoadedView",
    "StaticFunctionProvider",
    "load_directory",
    "parse_allow_list",
]
