"""All mutants."""

from __future__ import annotations

from tests.mutants.client_mutants import CLIENT_MUTANTS
from tests.mutants.cluster_mutants import CLUSTER_MUTANTS
from tests.mutants.coordination_mutants import COORDINATION_MUTANTS
from tests.mutants.frames_mutants import FRAMES_MUTANTS
from tests.mutants.limits_mutants import LIMITS_MUTANTS
from tests.mutants.log_mutants import LOG_MUTANTS
from tests.mutants.mutant import Mutant
from tests.mutants.rate_mutants import RATE_MUTANTS
from tests.mutants.repair_mutants import REPAIR_MUTANTS
from tests.mutants.security_mutants import SECURITY_MUTANTS
from tests.mutants.spark_mutants import SPARK_MUTANTS
from tests.mutants.sync_mutants import SYNC_MUTANTS

MUTANTS: tuple[Mutant, ...] = (
    *CLIENT_MUTANTS,
    *CLUSTER_MUTANTS,
    *COORDINATION_MUTANTS,
    *FRAMES_MUTANTS,
    *LIMITS_MUTANTS,
    *LOG_MUTANTS,
    *RATE_MUTANTS,
    *REPAIR_MUTANTS,
    *SYNC_MUTANTS,
    *SECURITY_MUTANTS,
    *SPARK_MUTANTS,
)
