"""What runs on every change, and what is left to the night (``.ci/run``, ``.ci/nightly``).

The whole takes an hour on two cores; what runs on every change should take less than eighteen
minutes. So each costly kind of test shows itself there with a part of its cases, always the same
ones. The night runs all of them. Nothing is left to the night alone, unless a line below says what
stands for it during the day.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby

import pytest

ALL = 0
"""Every case waits for the night."""

AT_NIGHT: Mapping[str, int] = {
    # The guides are typed as a user types them; by day README, the examples, and every import.
    "tests/installed/test_guide_of_logs.py": ALL,
    "tests/installed/test_runbooks.py": ALL,
    "tests/installed/test_guide_of_spark.py": ALL,
    "tests/installed/test_make_release.py": ALL,
    "tests/installed/test_operations_typed.py": ALL,
    "tests/installed/test_lost_copies_typed.py": ALL,
    # By day: what the source, the sink, their checks and their tables do on a healthy cluster; the
    # marks of targets and checkpoints by `tests/spark/unit/test_spark_marks.py`.
    "tests/spark/test_spark_audit.py": ALL,
    "tests/spark/test_spark_compaction.py": ALL,
    "tests/spark/test_spark_connect.py": ALL,
    "tests/spark/test_spark_export_target.py": ALL,
    "tests/spark/test_spark_ingest_checkpoint.py": ALL,
    "tests/spark/test_spark_log_jobs.py": ALL,
    "tests/spark/test_spark_metadata_servers.py": ALL,
    "tests/spark/test_spark_notebook.py": ALL,
    "tests/spark/test_spark_pipelines.py": ALL,
    "tests/spark/test_spark_prepare.py": ALL,
    "tests/spark/test_spark_sink_driver.py": ALL,
    "tests/spark/test_spark_sink_faults.py": ALL,
    "tests/spark/test_spark_source_memory.py": ALL,
    "tests/spark/test_spark_standalone.py": ALL,
    "tests/spark/test_spark_tls.py": ALL,
    # Tests of tests: that a world, a checker or a model finds bugs which are put into the product.
    "tests/cluster_sim/test_cluster_sim_finds_bugs.py": ALL,
    "tests/cluster_sim/test_log_sim_finds_bugs.py": ALL,
    "tests/histories/test_checker.py": 4,
    "tests/property/ledger/test_protocol_mutants.py": 4,
    "tests/property/node/engine/test_model_catches.py": 4,
    "tests/sim/test_images_find_bugs.py": 4,
    # By day the simulated cluster with ledgers, and logs on real processes in one episode.
    "tests/cluster_sim/test_log_sim.py": ALL,
    "tests/cluster_sim/test_cluster_sim.py": 4,
    "tests/cluster_sim/test_frames_sim.py": 3,
    "tests/cluster_sim/test_repair_sim.py": 11,
    # By day messages without an end; floods and damaged requests against a server in the test's own
    # process by `tests/unit/wire/grpc/test_abuse.py` and `test_bad_input.py`.
    "tests/abuse/test_floods.py": ALL,
    "tests/abuse/test_greed.py": ALL,
    "tests/abuse/test_http_abuse.py": ALL,
    "tests/abuse/test_refusals.py": ALL,
    "tests/abuse/test_unfinished_messages.py": 2,
    # Tables of cases.
    "tests/explorer/test_explorer.py": 6,
    "tests/explorer/test_explored_repair.py": 8,
    "tests/fault/test_commands_on_a_cluster.py": 8,
    "tests/fault/test_crash_kill.py": 8,
    "tests/fault/test_credentials.py": 4,
    "tests/fault/test_daemon_refusals.py": 6,
    "tests/fault/test_lost_disks.py": 3,
    "tests/fault/test_lost_disks_at_random.py": 4,
    "tests/fault/test_log_patience.py": 3,
    "tests/fault/test_logs_at_random.py": 3,
    "tests/fault/test_metadata_outage.py": 3,
    "tests/fault/test_repair.py": 6,
    # By day one episode; scripted faults by `test_repair.py`.
    "tests/fault/test_repair_at_random.py": ALL,
    "tests/fault/test_replacement.py": ALL,
    "tests/fault/test_true_health.py": 3,
    "tests/fault/test_demo.py": ALL,
    "tests/fault/test_explain.py": ALL,
    "tests/fault/test_prompts.py": 3,
    "tests/fault/test_reclaim.py": ALL,
    # By day each kind's rights on real servers, without bookies: `tests/interop/test_rights.py`.
    "tests/fault/test_rights_of_processes.py": ALL,
    "tests/fault/test_local_cluster.py": 4,
    "tests/fault/test_older_metadata.py": 2,
    # By day clients in virtual time, by `tests/cluster_sim/test_rates_sim.py`, and names, by
    # `tests/unit/wire/server/test_rate_meter.py`.
    "tests/fault/test_rates_of_processes.py": ALL,
    "tests/unit/ledger/write/test_rated_bookies.py": 3,
    "tests/fault/test_roles.py": 4,
    # By day each leak that it has found: `test_metadata_connect.py`, `test_http.py`,
    # `test_env_checked.py` and `test_ledger_client.py`.
    "tests/fault/test_secrets_stay_secret.py": ALL,
    "tests/fault/test_tls.py": 7,
    "tests/fault/test_torture.py": ALL,
    "tests/ledger_history/test_ledger_checker.py": 4,
    "tests/sim/test_crash_images.py": 4,
    "tests/spark/test_spark_batch_source.py": 5,
    "tests/spark/test_spark_columns.py": 3,
    "tests/spark/test_spark_ingest.py": 8,
    "tests/spark/test_spark_migrate.py": 6,
    "tests/spark/test_spark_sql.py": 2,
    "tests/spark/test_spark_tables.py": 2,
    "tests/spark/test_spark_checks.py": 2,
    "tests/spark/test_spark_sink.py": 4,
    "tests/spark/test_spark_stream_source.py": 4,
    # By day the table of parsers with the same 2000 changed inputs each, by `test_fuzz.py`; the
    # bounds of the largest messages by `tests/unit/wire/test_unary_codec.py`.
    "tests/fuzz/test_fuzz_hypothesis.py": ALL,
    "tests/fuzz/test_fuzz_growth.py": ALL,
    "tests/matrix/test_corruption_fuzz.py": ALL,
    "tests/matrix/test_corruption_matrix.py": ALL,
    "tests/matrix/test_io_errors.py": 12,
    "tests/property/ledger/test_protocol_model.py": 6,
    "tests/sim/test_rebuild_images.py": 2,
    "tests/sim/test_sim_seeds.py": 4,
    # The costly ones of the core. Each file shows each of its kinds by day.
    "tests/property/ledger/place/test_placement_properties.py": 4,
    "tests/property/ledger/test_metadata_properties.py": 4,
    "tests/property/metadata/test_metadata_model.py": 4,
    "tests/property/wire/test_codec_properties.py": 2,
    "tests/unit/cli/test_cli_app.py": 3,
    # By day by gRPC, and the kinds of calls by `tests/unit/ledger/connection/test_transports.py`.
    "tests/unit/ledger/test_clients_by_frames.py": ALL,
    "tests/unit/ledger/recover/test_forecast.py": 3,
    "tests/unit/log/compact/test_log_compaction.py": 2,
    "tests/unit/log/test_log_mutants.py": 4,
    "tests/unit/node/engine/reclaim/test_compaction.py": 2,
    "tests/unit/node/engine/test_engine_boot.py": 2,
    "tests/unit/node/engine/test_engine_damage.py": 2,
    # By day few connections; that nothing is replaced without need, by `test_grpc_tls.py`.
    "tests/unit/security/test_many_handshakes.py": 4,
    "tests/unit/sync/test_sync_forks.py": 3,
    # Each waits for timeouts of a second or two; by day half an introduction, by `test_abuse.py`.
    "tests/unit/wire/grpc/test_slow_peers.py": 3,
    "tests/unit/testing/test_testing_simulate.py": 3,
    # Ensembles of servers that are cut off from each other; by day one server, killed and stopped.
    "tests/histories/test_ensembles_under_faults.py": ALL,
    "tests/interop/test_full_stop.py": ALL,
    "tests/interop/test_zookeeper_ensemble.py": 5,
    "tests/interop/test_etcd_faults.py": 4,
    "tests/interop/test_rights.py": 5,
    "tests/interop/test_zookeeper_security.py": 4,
    "tests/interop/test_zookeeper_sessions.py": 3,
}
"""File → by day one in so many of its cases runs."""

TABLES_AT_NIGHT: Mapping[str, int] = dict.fromkeys(
    (
        "tests/property/ledger/test_quorum_properties.py",
        "tests/unit/api/test_forks.py",
        "tests/unit/cli/test_cli_log_consuming.py",
        "tests/unit/cli/test_cli_metadata.py",
        "tests/unit/daemon/test_http.py",
        "tests/unit/env/test_env_kv_check.py",
        "tests/unit/ledger/connection/test_arguments.py",
        "tests/unit/ledger/copies/test_replica_move.py",
        "tests/unit/log/publish/test_log_range_writer.py",
        "tests/unit/log/read/test_log_partitions_reader.py",
        "tests/unit/log/read/test_log_reader.py",
        "tests/unit/log/read/test_log_reader_faults.py",
        "tests/unit/log/read/test_log_reader_places.py",
        "tests/unit/log/read/test_log_start_position.py",
        "tests/unit/log/test_log_deleted.py",
        "tests/unit/log/write/test_log_writer_store.py",
        "tests/unit/node/engine/test_block_check.py",
        "tests/unit/node/engine/test_damaged_keys.py",
        "tests/unit/node/engine/test_engine_read.py",
        "tests/unit/node/test_node_calls.py",
        "tests/unit/node/test_node_states.py",
        "tests/unit/test_mutants.py",
    ),
    3,
)
"""File → by day one in so many cases of each of its functions runs, and the first one always."""


CONTRACT = "tests/conformance/"
"""The contract of the metadata stores. By day each case runs on memory, and on one real store in
turn: the next case on the next store. At night every case runs on every store."""

STORES = ("new_backend", "new_cut_off_backend")
"""The fixtures of the contract that take each store in turn."""


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what waits for the night. The same cases do each day, whatever their order."""
    for path, cases in groupby(sorted(items, key=_case), key=lambda item: _case(item)[0]):
        if (share := AT_NIGHT.get(path)) is None:
            continue
        for number, item in enumerate(cases):
            if share == ALL or number % share:
                item.add_marker("nightly")
    for function, cases in groupby(sorted(items, key=_case), key=_function):
        share = TABLES_AT_NIGHT.get(function.partition("::")[0], 1)
        for number, item in enumerate(cases):
            if number % share:
                item.add_marker("nightly")
    _leave_stores_to_the_night([item for item in items if item.nodeid.startswith(CONTRACT)])


def _leave_stores_to_the_night(items: Iterable[pytest.Item]) -> None:
    by_case: dict[str, dict[str, pytest.Item]] = defaultdict(dict)
    for item in items:
        if store := _store_of(item):
            by_case[item.nodeid.replace(f"[{store}", "[", 1)][store] = item
    for number, case in enumerate(sorted(by_case)):
        real = sorted(by_case[case].keys() - {"memory"})
        for store in real:
            if store != real[number % len(real)]:
                by_case[case][store].add_marker("nightly")


def _store_of(item: pytest.Item) -> str:
    """The store on which a case of the contract runs, or an empty string."""
    params = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    return next((str(params[name]) for name in STORES if name in params), "")


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]


def _case(item: pytest.Item) -> tuple[str, str]:
    path, _, case = item.nodeid.partition("::")
    return path, case
