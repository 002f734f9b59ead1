"""Settings of a running bookie under any sequence of cluster settings, right and wrong ones."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie.config import Settings, Sources
from bookie.config.load import section_type
from bookie.config.section import is_dynamic
from bookie.daemon.live_settings import LiveSettings
from bookie.errors import ConfigurationError

_TEXTS = {
    "storage.scrub_bytes_per_second": ["0", "1MiB", "fast"],
    "storage.read_threads": ["2", "9", "many"],
    "limits.disk_usage_max": ["0.5", "0.92", "0.99"],
    "limits.disk_usage_low_watermark": ["0.4", "0.91", "0.98", "2"],
    "log.level": ["debug", "error", "loud"],
    "no.such": ["1"],
}
_SETTINGS = st.fixed_dictionaries({}, optional={n: st.sampled_from(t) for n, t in _TEXTS.items()})
_OWN = st.fixed_dictionaries(
    {}, optional={name: st.just(texts[0]) for name, texts in _TEXTS.items() if name != "no.such"}
)
_DYNAMIC = [
    (section, key)
    for section in Settings.model_fields
    for key, field in section_type(section).model_fields.items()
    if is_dynamic(field)
]


def _is_right(sources: Sources, cluster: dict[str, str]) -> bool:
    try:
        sources.settings(cluster)
    except ConfigurationError:
        return False
    return True


@given(_OWN, st.lists(_SETTINGS, max_size=6))
def test_a_bookie_runs_with_what_is_right_of_the_clusters_settings(
    own: dict[str, str], states: list[dict[str, str]]
) -> None:
    """Its own settings stay; a right state is taken whole, of a wrong one what can be.

    What needs a restart never changes. It applies only settings that are right together. It runs
    with those that were applied last.
    """
    sources = Sources.read(None, own, environment={})
    if not _is_right(sources, {}):
        return
    live = LiveSettings(sources, {})
    at_start = live.settings
    applied = [live.settings]
    for state in states:
        live.take(state, applied.append)
        assert applied[-1] == live.settings
        assert Settings.model_validate(live.settings.model_dump()) == live.settings
        if _is_right(sources, state):
            wanted = sources.settings(state)
            for section, key in _DYNAMIC:
                now = getattr(getattr(live.settings, section), key)
                assert now == getattr(getattr(wanted, section), key)
            assert live.cluster == sorted(state)
        else:
            # Some of it is wrong: all that was taken is of this state, or was there before.
            assert "no.such" not in live.cluster
        assert live.settings.storage.read_threads == at_start.storage.read_threads
        for name in sources.origins():
            section, _, key = name.partition(".")
            ours = getattr(getattr(at_start, section), key)
            assert getattr(getattr(live.settings, section), key) == ours
