"""Lets Spark find ``format("bookkeeper")`` by itself: it looks for packages named ``pyspark_…``.

Spark imports every such package before it uses any source in Python. So an error here would break
other people's sources. What is wrong is told by the first use of this source instead.
"""

from bookie.errors import ConfigurationError

try:
    from pyspark.sql.datasource import DataSource
except ModuleNotFoundError as error:
    advice = "install it with `pip install 'bookie[spark]'`"
    raise ModuleNotFoundError(f"{error}; {advice}", name=error.name) from None

try:
    from bookie.spark.source import BookKeeperSource as DefaultSource
except (ConfigurationError, ImportError) as error:
    _problem = str(error)

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Stands in for a source that cannot be loaded, and says why."""

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            raise ConfigurationError(f"bookie cannot be used from Spark: {_problem}") from None

        @classmethod
        def name(cls) -> str:
            """The name of the format."""
            return "bookkeeper"


__all__ = ["DefaultSource"]
