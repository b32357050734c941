"""Phase D: remove what nothing needs, without changing any answer."""

from penni.shrinking.phase import Shrunk, shrink
from penni.shrinking.report import Kept, Report, Row, Structure

__all__ = ["Kept", "Report", "Row", "Shrunk", "Structure", "shrink"]
