"""Lets Spark find ``format("bookkeeper")``: Spark looks for packages named ``pyspark_…``.

Spark imports every such package before Spark uses any source in Python. So an error at the import
would break the sources of other packages. Instead, the first use of this source raises the error.
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
        """Replaces a source that cannot be loaded; the constructor raises the reason."""

        def __init__(self, options: dict[str, str]) -> None:
            super().__init__(options)
            raise ConfigurationError(f"bookie cannot be used from Spark: {_problem}") from None

        @classmethod
        def name(cls) -> str:
            """The name of the format."""
            return "bookkeeper"


__all__ = ["DefaultSource"]
