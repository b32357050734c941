"""The report of a run: one HTML page that needs no network, and its figures and tables as files."""

from penni.report.write import write

__all__ = ["write"]
