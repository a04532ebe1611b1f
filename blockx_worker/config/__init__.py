"""The worker's configuration: typed settings, and how they are read from defaults, files, environment and flags."""

from blockx_worker.config.addresses import format_address, is_loopback, is_wildcard, parse_address
from blockx_worker.config.cluster_settings import EtcdSettings, ShadowSettings
from blockx_worker.config.errors import ConfigError
from blockx_worker.config.io_settings import BlockDbSettings, IoSettings, JsonRpcSettings
from blockx_worker.config.load import LoadedSettings, load_settings
from blockx_worker.config.redact import redact_url
from blockx_worker.config.security_settings import TlsSettings
from blockx_worker.config.settings import (
    AdmissionSettings,
    DispatcherSettings,
    LogSettings,
    RpcSettings,
    Settings,
    StreamBuildSettings,
    WriterSettings,
)

__all__ = [
    "AdmissionSettings",
    "BlockDbSettings",
    "ConfigError",
    "DispatcherSettings",
    "EtcdSettings",
    "IoSettings",
    "JsonRpcSettings",
    "LoadedSettings",
    "LogSettings",
    "RpcSettings",
    "Settings",
    "ShadowSettings",
    "StreamBuildSettings",
    "TlsSettings",
    "WriterSettings",
    "format_address",
    "is_loopback",
    "is_wildcard",
    "load_settings",
    "parse_address",
    "redact_url",
]
