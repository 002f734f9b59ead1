"""The sink and the source by TLS: options name files, which each machine has."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import bookie.sync
from bookie.api import LogPolicy
from bookie.daemon.local.certificates import CLIENT, security_directory
from bookie.security.authority import settings_for
from bookie.spark.connecting import FILE_OPTIONS
from tests.spark.conftest import three_bookies

POLICY = LogPolicy(ensemble_size=1, write_quorum_size=1, ack_quorum_size=1)


def test_a_frame_there_and_back(spark: SparkSession, tmp_path: Path) -> None:
    with three_bookies(tmp_path, "--secure", "--bookies", "1"):
        uri = f"local://{tmp_path}/metadata"
        files = settings_for(security_directory(tmp_path), CLIENT)
        with bookie.sync.connect(uri, **files) as client:  # type: ignore[arg-type]
            client.create_log("orders", policy=POLICY, transactional=True)
        options = {option: files[name] for option, name in FILE_OPTIONS.items() if name in files}
        frame = spark.range(100).selectExpr("cast(id as string) as value")
        options |= {"metadata": uri, "log": "orders"}
        frame.write.format("bookkeeper").options(**options).mode("append").save()
        found = spark.read.format("bookkeeper").options(**options).load()
        assert sorted(int(bytes(row.value)) for row in found.collect()) == list(range(100))
        without = {"metadata": uri, "log": "orders"}
        with pytest.raises(Exception, match="speaks only TLS"):
            spark.read.format("bookkeeper").options(**without).load().collect()
