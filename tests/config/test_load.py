"""Reading the configuration: layers, precedence, origins, and one clear line for everything that is wrong."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from blockx_worker.config import ConfigError, LoadedSettings, load_settings
from blockx_worker.config.fields import FIELDS, MAPS
from blockx_worker.config.settings import DispatcherSettings, Settings
from blockx_worker.config.values import read_value
from blockx_worker.profiles import PROFILES


def load(
    toml: str | None = None, *, env: dict[str, str] | None = None, folder: Path | None = None, **flags: object
) -> LoadedSettings:
    file = None
    if toml is not None:
        assert folder is not None
        file = folder / "worker.toml"
        file.write_text(toml, encoding="utf-8")
    profile = flags.pop("profile", None)
    assert profile is None or isinstance(profile, str)
    return load_settings(
        profile, file, env or {}, {path.replace("__", "."): raw for path, raw in flags.items()}
    )


def problems(*args: str, **kwargs: object) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*args, **kwargs)  # type: ignore[arg-type]
    assert all("\n" not in line for line in caught.value.problems)
    return list(caught.value.problems)


# --- layers -----------------------------------------------------------------------------------------------------


def test_without_any_source_everything_is_default():
    loaded = load()
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert set(loaded.origins) == set(FIELDS) - set(MAPS)


def test_each_layer_wins_over_the_one_before(tmp_path):
    """Default, profile, file, old variable, new variable, flag."""
    toml = "profile = 'bundle'\nexecutor_count = 2\n[dispatcher]\ncall_deadline_ms = 2000\nmax_subcall_depth = 2\n"
    env = {
        "CALL_DEADLINE_MS": "3000",
        "BLOCKX_DISPATCHER_CALL_DEADLINE_MS": "4000",
        "EXECUTOR_COUNT": "3",
        "DISPATCH_INSTANCE_FAIRNESS": "true",
    }
    loaded = load(toml, env=env, folder=tmp_path, executor_count=4)
    shown = {path: (value_of(loaded.settings, path), origin) for path, origin in loaded.origins.items()}
    assert shown["max_ttl_ms"] == (600_000, "default")
    assert shown["task_slots"] == (256, "profile bundle")
    assert shown["dispatcher.max_subcall_depth"] == (2, f"file {tmp_path / 'worker.toml'}")
    assert shown["dispatcher.instance_fairness"] == (True, "env DISPATCH_INSTANCE_FAIRNESS")
    assert shown["dispatcher.call_deadline_ms"] == (4000, "env BLOCKX_DISPATCHER_CALL_DEADLINE_MS")
    assert shown["executor_count"] == (4, "flag --executors")


def value_of(settings: object, path: str) -> object:
    for name in path.split("."):
        settings = getattr(settings, name)
    return settings


@pytest.mark.parametrize(
    ("variable", "path"),
    [
        ("EXECUTOR_COUNT", "executor_count"),
        ("EXECUTOR_SELECTION_SAMPLE_SIZE", "dispatcher.executor_selection_sample_size"),
        ("CALL_DEADLINE_MS", "dispatcher.call_deadline_ms"),
        ("DISPATCH_INSTANCE_FAIRNESS", "dispatcher.instance_fairness"),
        ("MAX_COLLECTED_OUTPUT_BYTES", "dispatcher.max_collected_output_bytes"),
        ("CALL_RETRY_MAX_ATTEMPTS", "default_max_attempts"),
        ("EXECUTOR_TASK_SLOTS", "admission.executor_task_slots"),
    ],
)
def test_the_older_variables_are_read(variable, path):
    loaded = load(env={variable: "1"})
    assert value_of(loaded.settings, path) == 1
    assert loaded.origins[path] == f"env {variable}"


def test_every_field_can_be_set_by_its_own_variable():
    """No two fields share a variable, and each accepts its default as text."""
    variables = [field.variable for field in FIELDS.values()]
    assert len(set(variables)) == len(variables)
    for field in FIELDS.values():
        if isinstance(field.default, bool | int | str):
            text = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            assert value_of(load(env={field.variable: text}).settings, field.path) is not None


def test_every_default_is_a_value_that_its_field_accepts():
    for field in FIELDS.values():
        if field.default is not None and field.path not in MAPS:
            assert read_value(field, field.default) == field.default


def test_durations_sizes_switches_and_lists_are_read_from_text():
    loaded = load(
        env={
            "BLOCKX_MAX_TTL_MS": "1h",
            "BLOCKX_RPC_MAX_REQUEST_BYTES": "128MiB",
            "BLOCKX_INSECURE": "yes",
            "BLOCKX_EXECUTOR_ENV_ALLOW": "PATH, HOME,MY_KEY",
            "BLOCKX_WRITERS_ALLOW_URLS": "off",
        }
    ).settings
    assert loaded.max_ttl_ms == 3_600_000
    assert loaded.rpc.max_request_bytes == 128 << 20
    assert loaded.insecure is True
    assert loaded.executor_env_allow == ["PATH", "HOME", "MY_KEY"]
    assert loaded.urls_allowed is False


def test_a_file_may_write_durations_and_sizes_as_text_too(tmp_path):
    loaded = load("default_ttl_ms = '5s'\n[rpc]\nmax_request_bytes = '32MiB'\n", folder=tmp_path)
    assert loaded.settings.default_ttl_ms == 5000
    assert loaded.settings.rpc.max_request_bytes == 32 << 20


def test_an_empty_variable_counts_as_not_set():
    assert load(env={"EXECUTOR_COUNT": "", "BLOCKX_LISTEN": "", "BLOCKX_NONSENSE": ""}).settings == Settings()


def test_foreign_variables_are_ignored():
    assert load(env={"TASK_SLOTS": "x", "PATH": "/bin"}).settings == Settings()


def test_targets_come_from_the_file_and_from_the_environment(tmp_path):
    loaded = load(
        "[targets]\nlocal = 'sqlite:///out.db'\nmain = 'sqlite:///old.db'\n",
        env={"BLOCKX_TARGETS_MAIN": "postgresql://bob:pw@db/prod"},
        folder=tmp_path,
    )
    assert loaded.settings.targets["main"] == "postgresql://bob:pw@db/prod"
    assert loaded.origins["targets.main"] == "env BLOCKX_TARGETS_MAIN"
    assert loaded.origins["targets.local"].startswith("file ")


def test_relative_paths_of_a_file_start_at_its_folder(tmp_path, monkeypatch):
    (tmp_path / "functions").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "blocks").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = load(
        "functions_dir = 'functions'\n[targets]\nlocal = 'sqlite:///out.db'\n",
        folder=tmp_path,
        blocks_dir="blocks",
    )
    assert loaded.settings.functions_dir == str(tmp_path / "functions")
    assert loaded.settings.blocks_dir == str(tmp_path / "elsewhere" / "blocks")
    assert loaded.settings.targets["local"] == f"sqlite:///{tmp_path}/out.db"


@pytest.mark.parametrize("url", ["sqlite:////tmp/out.db", "sqlite:///:memory:", "postgresql://db/x"])
def test_urls_without_a_relative_file_stay_as_they_are(url, tmp_path):
    assert load(f"[targets]\nmain = '{url}'\n", folder=tmp_path).settings.targets["main"] == url


# --- derived values ---------------------------------------------------------------------------------------------


def test_derived_values_are_filled_in():
    settings = Settings()
    assert settings.executor_count == min(8, len(os.sched_getaffinity(0)))
    assert settings.executor_python == sys.executable
    assert settings.dispatcher.scheduler_stall_timeout_ms == 10_000
    assert settings.dispatcher.heartbeat_timeout_ms == 15_000


@pytest.mark.parametrize(
    ("given", "effective"), [(0, 12_000), (7000, 12_000), (8000, 12_000), (8001, 8001), (60_000, 60_000)]
)
def test_a_stall_timeout_too_close_to_the_call_budget_is_raised(given, effective):
    dispatcher = DispatcherSettings(call_deadline_ms=7000, scheduler_stall_timeout_ms=given)
    assert dispatcher.scheduler_stall_timeout_ms == effective


def test_a_raised_value_is_marked_in_its_origin():
    loaded = load(env={"SCHEDULER_STALL_TIMEOUT_MS": "100"})
    assert loaded.settings.dispatcher.scheduler_stall_timeout_ms == 10_000
    assert (
        loaded.origins["dispatcher.scheduler_stall_timeout_ms"] == "env SCHEDULER_STALL_TIMEOUT_MS, adjusted"
    )


def test_an_explicit_heartbeat_timeout_stays_as_it_is():
    assert DispatcherSettings(heartbeat_timeout_ms=1000).heartbeat_timeout_ms == 1000


def test_urls_are_allowed_only_on_loopback_unless_said_otherwise():
    assert Settings().urls_allowed
    assert not Settings(listen="10.0.0.1:7420", insecure=True).urls_allowed


# --- what is wrong ----------------------------------------------------------------------------------------------

BAD_FILES = {
    "task_slots = 0": ["task_slots = 0", "an integer from 1 to 65536"],
    "task_slots = 70000": ["task_slots = 70000", "an integer from 1 to 65536"],
    "task_slots = true": ["task_slots = true", "an integer"],
    "task_slots = 4.5": ["task_slots = 4.5", "an integer"],
    "task_slots = 'many'": ["task_slots = 'many'", "an integer"],
    "task_slots = [1]": ["task_slots = [1]", "an integer"],
    "default_ttl_ms = '5 parsecs'": [
        "default_ttl_ms = '5 parsecs'",
        "a duration from 1ms to 1d",
        "500ms, 5s, 10m, 1h",
    ],
    "default_ttl_ms = -1": ["default_ttl_ms = -1", "a duration"],
    "result_retention_bytes = '64 apples'": ["result_retention_bytes", "a size", "64MiB"],
    "insecure = 'true!'": ["insecure = 'true!'", "true or false"],
    "insecure = 1": ["insecure = 1", "true or false"],
    "listen = '7420'": ["listen = '7420'", "HOST:PORT"],
    "listen = 'localhost:99999'": ["listen = 'localhost:99999'", "0 to 65535"],
    "listen = '0.0.0.0:7420'\nadvertise = 'h:1'": ["listen = '0.0.0.0:7420'", "--insecure", "127.0.0.1"],
    "listen = '0.0.0.0:7420'\ninsecure = true": ["listen = '0.0.0.0:7420'", "advertise"],
    "listen = '10.0.0.1:7420'": ["listen = '10.0.0.1:7420'", "--insecure"],
    "advertise = '[::]:7420'": ["advertise = '[::]:7420'", "wildcard"],
    "profile = 'blok'": ["profile = 'blok'", "block, bundle"],
    "profile = 3": ["profile = 3", "expected text"],
    "executor_spawn_mode = 'container'": ["executor_spawn_mode = 'container'", "one of: process"],
    "executor_env_allow = 'PATH,,HOME'": ["executor_env_allow", "a list of texts"],
    "executor_env_allow = [1]": ["executor_env_allow = [1]", "a list of texts"],
    "executor_python = ''": ["executor_python = ''", "expected text"],
    "functions_dir = 'nowhere'": ["functions_dir", "nowhere", "no such folder"],
    "functions_dir = 'worker.toml'": ["functions_dir", "is not a folder"],
    "ready_file = 'nowhere/ready.json'": ["ready_file", "its folder does not exist"],
    "task_slot = 3": ["task_slot (file", "did you mean task_slots?"],
    "taskSlots = 3": ["taskSlots (file", "did you mean task_slots?"],
    "call_deadline_ms = 3": ["call_deadline_ms (file", "did you mean dispatcher.call_deadline_ms?"],
    "zzz = 3": ["zzz (file", "unknown field", "blockx config"],
    "dispatcher = 3": ["dispatcher = 3", "expected a table: [dispatcher]"],
    "[dispatchr]\nx = 1": ["[dispatchr]", "did you mean [dispatcher]?"],
    "[dispatcher]\nmax_subcall_dept = 1": [
        "dispatcher.max_subcall_dept",
        "did you mean dispatcher.max_subcall_depth?",
    ],
    "[dispatcher]\ninstance_fairness_quantum = 8": [
        "instance_fairness_quantum = 8",
        "instance_fairness = true",
    ],
    "[dispatcher]\ninstance_fairness_quantum = 2000": ["instance_fairness_quantum = 2000", "0 to 1024"],
    "[dispatcher]\nheartbeat_timeout_ms = 600": ["heartbeat_timeout_ms = 600", "at least twice"],
    "[log]\nlevel = 'loud'": ["log.level = 'loud'", "debug, error, info, warning"],
    "[targets]\nmain = 'sqlite:////no/such/folder/x.db'": [
        "targets.main",
        "its folder /no/such/folder does not exist",
    ],
    "[targets]\nmain = 'mysql://db'": ["targets.main = 'mysql://db'", "sqlite:///FILE or postgresql://"],
    "[targets]\nmain = 5": ["targets.main = 5", "a database URL"],
    "[targets]\n'a b' = 'sqlite:///x'": ["targets.a b", "letters, digits"],
    "default_ttl_ms = 700000": ["default_ttl_ms = 700000", "at most max_ttl_ms = 600000 (default)"],
    "default_timeout_ms = '2d'": ["default_timeout_ms = 172800000", "at most max_timeout_ms = 86400000"],
    "max_timeout_ms = '10m'\n[rpc]\nmax_wait_ms = '20m'": ["rpc.max_wait_ms", "at most max_timeout_ms"],
    "task_slots = ": ["worker.toml: not valid TOML", "Invalid value"],
}


@pytest.mark.parametrize("toml", BAD_FILES)
def test_a_bad_file_gives_one_line_that_names_field_value_and_what_is_accepted(toml, tmp_path):
    [line] = problems(toml, folder=tmp_path)
    for part in (*BAD_FILES[toml], "worker.toml"):
        assert part in line


def test_all_problems_are_reported_at_once(tmp_path):
    lines = problems(
        "task_slots = 0\nnonsense = 1\n",
        folder=tmp_path,
        env={"CALL_DEADLINE_MS": "soon", "BLOCKX_TASK_SLOT": "4"},
        executor_count="two",
    )
    assert len(lines) == 5
    assert any("env CALL_DEADLINE_MS" in line for line in lines)
    assert any("flag --executors" in line for line in lines)


def test_a_misspelt_variable_is_an_error_that_names_the_right_one():
    [line] = problems(env={"BLOCKX_EXECUTOR_COUNTS": "4"})
    assert (
        line == "BLOCKX_EXECUTOR_COUNTS (environment): unknown setting; did you mean BLOCKX_EXECUTOR_COUNT?"
    )


def test_a_variable_without_its_section_is_an_error_that_names_the_right_one():
    [line] = problems(env={"BLOCKX_CALL_DEADLINE_MS": "4"})
    assert "did you mean BLOCKX_DISPATCHER_CALL_DEADLINE_MS?" in line


def test_a_missing_file_is_one_clear_line(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot read the configuration file: No such file"):
        load_settings(None, tmp_path / "none.toml", {}, {})


def test_a_file_that_is_not_text_is_one_clear_line(tmp_path):
    (tmp_path / "worker.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        load_settings(None, tmp_path / "worker.toml", {}, {})


def test_long_values_are_cut_and_passwords_masked_in_problems(tmp_path):
    [long] = problems(f"executor_spawn_mode = '{'x' * 500}'", folder=tmp_path)
    assert len(long) < 300
    [secret] = problems("[targets]\nmain = 'mysql://bob:hunter2@db'", folder=tmp_path)
    assert "hunter2" not in secret
    assert "bob:***@db" in secret


def test_a_runtime_folder_too_long_for_sockets_is_refused(tmp_path):
    [line] = problems(f"runtime_dir = '/{'x' * 100}'", folder=tmp_path)
    assert "too long for socket paths" in line


# --- profiles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_tunes_only_fields_that_exist(name):
    loaded = load(profile=name)
    for path, value in PROFILES[name].tune_defaults.items():
        assert value_of(loaded.settings, path) == value
        assert loaded.origins[path] == f"profile {name}"


def test_settings_cannot_be_changed():
    with pytest.raises(AttributeError):
        Settings().task_slots = 3  # type: ignore[misc]
